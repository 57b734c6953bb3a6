"""`topolet kubelet-state --write-kubelet-state` with a real agent and a real runtime."""

import json

from agent.kubelet import cpu_manager_state
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.kubelet.statefile import Checked
from agent.model.cpu.cpuset import CpuSet
from tests.fixtures.pods import run_pod
from tests.integration.harness import TestNode
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
