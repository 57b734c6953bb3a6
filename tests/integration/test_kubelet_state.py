"""`topolet kubelet-state --write-kubelet-state` with a real agent and a real runtime."""

import json
import shutil
from pathlib import Path

import pytest

from agent.kubelet import cpu_manager_state
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.kubelet.statefile import Checked
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.qos import QOS_LABEL
from tests.fixtures.pods import run_pod
from tests.integration.harness import TestNode, fresh_node, kernel_cpus
from tests.integration.kubelet.standalone import START_SECONDS, Kubelet, container, running_pid
from tests.waiting import eventually


def test_cpus_of_a_scheduler_are_written_into_the_kubelets_file(node: TestNode) -> None:
    kubelet = node.folder / "kubelet"
    kubelet.mkdir(exist_ok=True)
    file = kubelet / "cpu_manager_state"
    before = CpuManagerState("static", CpuSet([0, 1]), version=2)
    file.write_bytes(cpu_manager_state.encode(before))
    node.start_agent()
    spec = node.spec("lse", "LSE", "1")
    _, lse = run_pod(node.direct, spec)
    run_pod(node.direct, node.spec("ls", "LS"))
    eventually("it runs on its CPU", lambda: node.cpus(lse) == "1")

    def written() -> bool:
        snapshot = json.loads((node.state / "snapshot.json").read_text())
        return lse in snapshot["containers"]

    eventually("the snapshot has it", written)
    node.stop_agent()
    words = (
        "kubelet-state",
        "--write-kubelet-state",
        f"--runtime-endpoint=unix://{node.containerd.socket}",
        f"--state-dir={node.state}",
        f"--kubelet-dir={kubelet}",
    )
    done = node.run_cli(*words)
    assert done.returncode == 0, done.stderr
    assert f"pod {spec.uid}, container main: shared CPUs -> 1" in done.stdout
    assert f"The old file is {file}.topolet-backup" in done.stdout
    after = cpu_manager_state.read(str(file))
    assert (after.by_uid, after.default) == ({spec.uid: CpuSet([1])}, CpuSet([0]))
    assert after.checked is Checked.VERIFIED
    again = node.run_cli(*words)
    assert (again.returncode, "Nothing to write" in again.stdout) == (0, True)


def test_a_kubelet_starts_on_the_file_that_was_written(kubelet: Kubelet) -> None:
    """The kubelet assigns no CPUs to a pod that requests a fraction of a CPU. With the written file
    it counts the pod's CPU as assigned."""
    own = max(kubelet.topology.online - kubelet.reserved)
    rest = kubelet.topology.online - CpuSet([own])
    file = kubelet.root / cpu_manager_state.FILE_NAME
    claim = {RESOURCE_STATUS: json.dumps({"cpuset": str(own)})}
    metadata = {"labels": {QOS_LABEL: "LSE"}, "annotations": claim}

    def runs_on(pod: str) -> str:
        pid = running_pid(kubelet, pod, "main")
        return kernel_cpus(pid) if pid else ""

    with fresh_node(kubelet.containerd) as node:
        node.start_agent(f"--kubelet-dir={kubelet.root}")
        claimant = kubelet.run("claimant", [container("main", "100m")], metadata)
        eventually("the claimant has its CPU", lambda: runs_on(claimant) == str(own), START_SECONDS)
        assert cpu_manager_state.read(str(file)).by_uid == {}
        shutil.copy(kubelet.folder / "config.json", kubelet.root / "config.yaml")
        words = (
            "kubelet-state",
            "--write-kubelet-state",
            f"--runtime-endpoint=unix://{kubelet.containerd.socket}",
            f"--state-dir={node.state}",
            f"--kubelet-dir={kubelet.root}",
        )
        refused = node.run_cli(*words)
        assert (refused.returncode, "stop it" in refused.stderr) == (1, True), refused
        kubelet.kill()
        done = node.run_cli(*words)
        assert done.returncode == 0, done.stderr
        node.stop_agent()
        written = cpu_manager_state.read(str(file))
        ((uid, given),) = written.by_uid.items()
        assert (given, written.default) == (CpuSet([own]), rest)

        assert "corrupt" in _start_on(kubelet, file, file.read_bytes().replace(b"0", b"1", 1))
        file.write_bytes(cpu_manager_state.encode(written))
        before = len(kubelet.log)
        kubelet.start()
        assert "restored state from checkpoint" in kubelet.log[before:]
        assert runs_on(claimant) == str(own)
        eventually("it lists the pod", lambda: kubelet.listed(claimant), START_SECONDS)
        listed = kubelet.listed(claimant)
        assert listed is not None
        assert [each.cpus for each in listed.containers] == [CpuSet([own])]

        later = kubelet.run("later", [container("main", "")])
        eventually("a new pod shares the rest", lambda: runs_on(later) == str(rest), START_SECONDS)
        kubelet.run("whole", [container("main", "1")])
        refusal = "not enough cpus available to satisfy request"
        eventually("no CPU is left for another", lambda: refusal in kubelet.log, START_SECONDS)
        assert cpu_manager_state.read(str(file)).by_uid == {uid: given}
        for name in ("whole", "later", "claimant"):
            kubelet.end(name)
        state = lambda: cpu_manager_state.read(str(file))  # noqa: E731
        eventually("the CPU is shared again", lambda: state().default == kubelet.topology.online)


def _start_on(kubelet: Kubelet, file: Path, content: bytes) -> str:
    """Starts the kubelet with an invalid state file; the log of its failure."""
    file.write_bytes(content)
    before = len(kubelet.log)
    with pytest.raises(AssertionError):
        kubelet.start()
    kubelet.kill()
    return kubelet.log[before:]
