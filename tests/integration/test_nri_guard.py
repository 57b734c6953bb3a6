"""The guard of the NRI plugin on a real containerd 2, while the plugin hangs or is killed.

The snapshot is written in place of an agent, which would correct a container that started on wrong
CPUs before a test could read them."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from agent.host import files
from agent.host.files import boot_id
from agent.model import snapshot as snapshots
from agent.model.linux_resources import LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError
from agent.telemetry import audit
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
)
from tests.integration.harness import (
    NO_FULL_PASS,
    built_or_skip,
    private_containerd,
    private_crio,
)
from tests.integration.nri_node import NriNode, nri_node
from tests.waiting import eventually

PLUGIN, GUARD = "topolet", "topolet-guard"
TIMEOUT_SECONDS = 0.5
"""How long the runtime waits for a plugin."""
POINTS = 12
LONG_POINTS = 500
CRIO_SECONDS = 2.0
"""How long CRI-O waits for a plugin by default."""


@pytest.fixture(scope="module")
def guarded_containerd() -> Iterator[Containerd]:
    """A containerd 2 that creates no container without plugin and guard."""
    with private_containerd(
        built_or_skip("containerd"), required_plugins=(PLUGIN, GUARD), nri_seconds=TIMEOUT_SECONDS
    ) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def unguarded_containerd() -> Iterator[Containerd]:
    """A containerd 2 that creates no container without the plugin."""
    with private_containerd(
        built_or_skip("containerd"), required_plugins=(PLUGIN,), nri_seconds=TIMEOUT_SECONDS
    ) as runtime:
        yield runtime


@pytest.fixture
def guarded(guarded_containerd: Containerd) -> Iterator[Decided]:
    """Plugin and guard run."""
    with nri_node(guarded_containerd) as nri, Decided(nri) as it:
        nri.start_guard()
        nri.start_plugin()
        it.sandboxes()
        yield it


class Decided:
    """A node with an owner of CPU 1 and a pod that shares CPU 0, for which a thread writes the same
    decisions again and again, as an agent that makes passes."""

    def __init__(self, nri: NriNode) -> None:
        self.nri = nri
        self.node = nri.node
        self.owner = nri.node.spec("own", "LSE", "1")
        self.shared = nri.node.spec("shared", "LS")
        self._sandboxes: dict[str, str] = {}
        self._number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._requests: dict[str, pb.CreateContainerRequest] = {}

    def __enter__(self) -> Decided:
        self.write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_passes()

    def stop_passes(self) -> None:
        """The agent ends: the last snapshot stays."""
        self._ended.set()
        self._thread.join()

    def write(self) -> None:
        """Writes the snapshot."""
        self.node.state.mkdir(exist_ok=True)
        ls = PodWanted("default/shared", QoS.LS, Wanted(LinuxResources("0")))
        own = PodWanted("default/own", QoS.LSE, Wanted(LinuxResources("1"), exclusive=True))
        snapshot = Snapshot(
            1,
            time.monotonic_ns(),
            boot_id(),
            False,
            {"ls": (Pool(0, 0, "0"),), "be": (Pool(0, 0, "0"),)},
            (Owner(self.owner.uid, "default/own", QoS.LSE, "1"),),
            {self.owner.uid: own, self.shared.uid: ls},
            {},
        )
        path = str(self.node.state / snapshots.FILE)
        files.replace(path, snapshots.encode(snapshot), durable=False)

    def sandboxes(self) -> None:
        for spec in (self.owner, self.shared):
            self._sandboxes[spec.name] = run_sandbox(self.node.direct, spec)

    def create(self, spec: PodSpec) -> str:
        """Creates one more container of the pod. Raises RpcError."""
        if spec.name not in self._sandboxes:
            self._sandboxes[spec.name] = run_sandbox(self.node.direct, spec)
        self._number += 1
        request = create_request(spec, self._sandboxes[spec.name], f"c{self._number}")
        return create_container(self.node.direct, request)

    def created(self, spec: PodSpec) -> bool:
        try:
            self.create(spec)
        except RpcError:
            return False
        return True

    def starts_on(self, container_id: str) -> str:
        """The CPUs in the container's OCI spec, "" for any."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        status = self.node.direct.call("ContainerStatus", request, pb.ContainerStatusResponse)
        spec = json.loads(status.info["info"])["runtimeSpec"]
        cpus = spec["linux"]["resources"].get("cpu", {}).get("cpus", "")
        assert isinstance(cpus, str)
        return cpus

    def strike(self, number: signal.Signals, after_seconds: float) -> dict[str, str]:
        """Sends the plugin a signal while containers are created; by created container its pod.
        Returns when the plugin is asked again."""
        created: dict[str, str] = {}

        def create_both() -> None:
            for spec in (self.owner, self.shared):
                with contextlib.suppress(RpcError):
                    created[self.create(spec)] = spec.name

        thread = threading.Thread(target=create_both)
        thread.start()
        time.sleep(after_seconds)
        if number == signal.SIGKILL:
            self.nri.kill_plugin()
        else:
            self.nri.signal(number)
        thread.join()
        if number == signal.SIGKILL:
            self.nri.start_plugin(waits=False)
        else:
            self.nri.signal(signal.SIGCONT)
        return created

    def _publish(self) -> None:
        while not self._ended.wait(0.02):
            self.write()


EXPECTED = {"own": "1", "shared": "0"}


def strike_at(it: Decided, points: int) -> None:
    """The guard holds at every point."""
    chosen = random.Random(points)
    created_count = 0
    for point in range(points):
        number = chosen.choice((signal.SIGSTOP, signal.SIGKILL))
        created = it.strike(number, chosen.uniform(0, 0.06))
        created_count += len(created)
        for container, pod in created.items():
            assert it.starts_on(container) == EXPECTED[pod], f"point {point}: {number.name}"
            remove = pb.RemoveContainerRequest(container_id=container)
            it.node.direct.call("RemoveContainer", remove, pb.RemoveContainerResponse)
        eventually("the plugin adjusts again", lambda: it.created(it.owner))
    assert 0 < created_count < 2 * points, "some were created, and some refused"


def test_no_container_starts_on_wrong_cpus_while_the_plugin_hangs_or_is_killed(
    guarded: Decided,
) -> None:
    strike_at(guarded, POINTS)


@pytest.fixture
def guarded_crio() -> Iterator[Decided]:
    """Plugin and guard run with a CRI-O that creates no container without them. This version can't
    pin its monitors on cgroup v1."""
    with (
        private_crio("cri-o-1.36", "", (PLUGIN, GUARD), CRIO_SECONDS) as runtime,
        nri_node(runtime) as nri,
        Decided(nri) as it,
    ):
        nri.start_guard()
        nri.start_plugin()
        it.sandboxes()
        yield it


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_guard_does_the_same_on_cri_o(guarded_crio: Decided) -> None:
    """The plugin hangs, and is killed while a creation waits for it."""
    it = guarded_crio
    assert it.starts_on(it.create(it.owner)) == "1"
    it.nri.signal(signal.SIGSTOP)
    with pytest.raises(RpcError, match="pod default/own owns CPUs 1, but its container"):
        it.create(it.owner)
    with pytest.raises(RpcError, match=f'required plugin "{PLUGIN}" not present'):
        it.create(it.owner)
    it.nri.signal(signal.SIGCONT)
    eventually("the plugin adjusts again", lambda: it.created(it.owner))
    it.nri.signal(signal.SIGSTOP)
    assert it.strike(signal.SIGKILL, CRIO_SECONDS / 2) == {}
    eventually("the next plugin adjusts", lambda: it.created(it.owner))
    assert it.starts_on(it.create(it.shared)) == "0"


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_no_container_starts_on_wrong_cpus_at_500_points(guarded: Decided) -> None:
    strike_at(guarded, LONG_POINTS)


def test_a_required_plugin_that_hangs_is_bypassed_without_the_guard(
    unguarded_containerd: Containerd,
) -> None:
    """containerd/nri issue 316. When this fails, the runtime refuses such a container itself."""
    with nri_node(unguarded_containerd) as nri, Decided(nri) as it:
        nri.start_plugin()
        it.sandboxes()
        assert it.starts_on(it.create(it.owner)) == "1"
        nri.signal(signal.SIGSTOP)
        assert it.starts_on(it.create(it.owner)) == "", "an owner on all CPUs"
        with pytest.raises(RpcError, match=f'required plugin "{PLUGIN}" not present'):
            it.create(it.owner)
        nri.signal(signal.SIGCONT)


def test_the_kubelet_reads_why_a_container_was_refused(guarded: Decided) -> None:
    guarded.nri.signal(signal.SIGSTOP)
    with pytest.raises(RpcError) as refused:
        guarded.create(guarded.owner)
    guarded.nri.signal(signal.SIGCONT)
    why = "pod default/own owns CPUs 1, but its container c1 would start on any CPU"
    assert f"topolet-guard: {why}" in str(refused.value)
    assert f'level=warning msg="refused: {why}"' in guarded.node.log("nri-guard")
    (record,) = [
        each for each in audit.read(str(guarded.node.state)).records if each.process == "nri-guard"
    ]
    assert (record.event, record.title, record.container) == (
        "ContainerRefused",
        "default/own",
        "c1",
    )
    assert record.message == why
    assert guarded.nri.guard_status().refused == 1


def test_while_the_guard_does_not_run_or_hangs_no_container_is_created(guarded: Decided) -> None:
    it, nri = guarded, guarded.nri
    assert nri.guard is not None
    nri.guard.send_signal(signal.SIGSTOP)
    with pytest.raises(RpcError, match="validator plugin 99-topolet-guard failed"):
        it.create(it.shared)
    with pytest.raises(RpcError, match=f'required plugin "{GUARD}" not present'):
        it.create(it.shared)
    nri.guard.send_signal(signal.SIGCONT)
    eventually("the guard registers again", lambda: it.created(it.shared))
    nri.kill_guard()
    with pytest.raises(RpcError, match="topolet-guard"):
        it.create(it.shared)
    nri.start_guard()
    assert it.starts_on(it.create(it.owner)) == "1"


def test_a_restarted_runtime_creates_nothing_before_the_guard_is_back(guarded: Decided) -> None:
    it, runtime = guarded, guarded.node.containerd
    assert isinstance(runtime, Containerd)
    runtime.kill()
    runtime.start()
    it.node.direct.close()
    eventually("both are registered again", lambda: it.created(it.owner))
    assert it.nri.guard_status().sessions >= 2


def test_without_an_agent_the_last_snapshot_counts(guarded: Decided) -> None:
    """Pods that claim nothing start on CPUs without an owner, all others are refused."""
    it, state = guarded, guarded.node.state / snapshots.FILE
    it.stop_passes()
    it.create(it.shared)
    stranger, claiming = it.node.spec("stranger", "LS"), it.node.spec("claims", "LSE", "0")
    assert it.starts_on(it.create(stranger)) == "0"
    it.nri.signal(signal.SIGSTOP)
    with pytest.raises(RpcError, match="but pod default/own owns CPUs 1"):
        it.create(stranger)
    it.nri.signal(signal.SIGCONT)
    eventually("the plugin is back", lambda: it.created(it.shared))
    with pytest.raises(RpcError, match="claims"):
        it.create(claiming)

    state.write_text('{"version":1,"torn')
    assert it.starts_on(it.create(it.shared)) == "0"
    eventually("the log names the file", lambda: "can't be read" in it.node.log("nri-guard"))
    state.unlink()
    it.create(it.shared)
    with pytest.raises(RpcError, match="claims"):
        it.create(claiming)


def test_containers_of_exempt_namespaces_start_without_the_plugin(
    guarded_containerd: Containerd,
) -> None:
    with nri_node(guarded_containerd) as nri, Decided(nri) as it:
        nri.start_guard("--guard-exempt=topolet-system,kube-*")
        nri.start_plugin()
        dns = it.node.spec("dns", namespace="kube-system")
        assert it.starts_on(it.create(dns)) == "0"
        nri.signal(signal.SIGSTOP)
        assert it.starts_on(it.create(dns)) == ""
        nri.signal(signal.SIGCONT)


def test_with_an_agent_pods_run_as_without_the_guard(guarded_containerd: Containerd) -> None:
    with nri_node(guarded_containerd) as nri:
        node = nri.node
        node.start_agent(NO_FULL_PASS)
        nri.start_guard()
        nri.start_plugin()
        sandbox, lse = node.run_retrying(node.direct, node.spec("lse", "LSE", "1"))
        _, ls = run_pod(node.direct, node.spec("ls", "LS"))
        _, be = run_pod(node.direct, node.spec("be", "BE", kube_class="besteffort"))
        assert (node.cpus(lse), node.cpus(ls), node.cpus(be)) == ("1", "0", "0")
        remove_pod(node.direct, sandbox)
        eventually("LS has CPU 1 again", lambda: node.cpus(ls) == "0-1")
        assert node.metric("topolet_cpu_overlaps_total") == 0
        assert node.metric("topolet_nri_guard_ready") == 1
        node.kill_agent()
        _, later = run_pod(node.direct, node.spec("later", "LS"))
        assert node.cpus(later) == "0-1"


def test_a_second_guard_ends(guarded: Decided) -> None:
    it = guarded
    second = it.node.run_cli("nri-guard", f"--state-dir={it.node.state}")
    assert second.returncode == 1
    assert "held by another guard" in second.stderr
    assert it.nri.guard_ready()
