"""Each optional source of the agent fails, before the agent starts and while it runs. The agent
starts, continues, keeps the cpusets correct, and reports the source."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.kube.store import EmbeddedStore
from agent.kubelet import podresources
from agent.node.sources import SourceName
from tests.discover.buses import add_function, write_files
from tests.faults.conftest import AgentHarness
from tests.fixtures.ports import free_port
from tests.node.procfs import process
from tests.waiting import eventually

POLICY_NONE = '{"policyName":"none","defaultCpuSet":"","checksum":0}'
NVIDIA = {"class": "0x030200\n", "vendor": "0x10de\n", "device": "0x2330\n"}


class FaultyNode:
    """A node, each of whose sources can be made to fail, and its agent."""

    def __init__(self, harness: AgentHarness, folder: Path) -> None:
        self.harness = harness
        self.root = folder / "machine"
        self.kubelet = folder / "kubelet"
        self.state = harness.node.state
        self.pod_resources = Path(podresources.socket_path(str(self.kubelet)))
        self.pod_resources.parent.mkdir()
        self.flags: list[str] = []
        self.kubelet_command = ["kubelet", "--config=/etc/kubelet.yaml"]
        self.refused: list[str] = []
        self.port = free_port()
        self.listeners = contextlib.ExitStack()
        self.process()
        self.config = self.root / "etc/kubelet.yaml"
        self.config.parent.mkdir()
        self.config.write_text("cpuManagerPolicy: none\n")
        self.checkpoint = self.kubelet / "device-plugins/kubelet_internal_checkpoint"
        self.checkpoint.parent.mkdir()
        (self.kubelet / "cpu_manager_state").write_text(POLICY_NONE)
        self.lse = harness.run_container("LSE", "1-2")
        self.ls = harness.run_container("LS")

    def process(self) -> None:
        process(self.root, 70, *self.kubelet_command)

    def start(self) -> None:
        flags = ["--period-seconds=0.1", f"--http=127.0.0.1:{self.port}", *self.flags]
        self.harness.start(*flags, refused=self.refused)

    def trigger_reads(self) -> None:
        """Rewrites the kubelet's state file, so that the agent reads its sources again."""
        file = self.kubelet / "cpu_manager_state"
        if file.is_file():
            file.write_bytes(file.read_bytes())

    def check_cpus(self) -> None:
        """Checks the CPUs of the LSE pod, of the LS pod and of a new LS pod."""
        late = self.harness.run_container("LS")
        eventually("the new pod has its CPUs", lambda: self.harness.cpus(late) == "0,3-15")
        eventually("the LS pod has its CPUs", lambda: self.harness.cpus(self.ls) == "0,3-15")
        assert self.harness.cpus(self.lse) == "1-2"
        assert self.harness.launcher.running, self.harness.launcher.log()

    def is_reported(self, source: SourceName) -> bool:
        """Whether metric and log report the source."""
        series = f'topolet_source_problems{{source="{source.value}"}} '
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
        counted = [each for each in lines if each.startswith(series) and not each.endswith(" 0")]
        return bool(counted) and f'msg="{source.value}: ' in self.harness.launcher.log()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short path: that of a socket in it has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="topolet-") as folder:
        yield Path(folder)


@pytest.fixture
def node(harness: AgentHarness, tmp_path: Path) -> Iterator[FaultyNode]:
    faulty = FaultyNode(harness, tmp_path)
    with faulty.listeners:
        yield faulty


Fault = Callable[[FaultyNode], None]


def is_torn(path: Callable[[FaultyNode], Path]) -> Fault:
    def fault(node: FaultyNode) -> None:
        path(node).write_text('{"policyName":"sta')

    return fault


def is_a_folder(path: Callable[[FaultyNode], Path]) -> Fault:
    def fault(node: FaultyNode) -> None:
        path(node).unlink(missing_ok=True)
        path(node).mkdir()

    return fault


def is_garbage(path: Callable[[FaultyNode], Path]) -> Fault:
    def fault(node: FaultyNode) -> None:
        path(node).write_bytes(b"\xff\0\n" * 1000)

    return fault


def cpu_manager_state(node: FaultyNode) -> Path:
    return node.kubelet / "cpu_manager_state"


def memory_manager_state(node: FaultyNode) -> Path:
    return node.kubelet / "memory_manager_state"


def device_checkpoint(node: FaultyNode) -> Path:
    return node.checkpoint


def cluster_memory(node: FaultyNode) -> Path:
    return node.state / "cluster.json"


def snapshot(node: FaultyNode) -> Path:
    return node.state / "snapshot.json"


def journal(node: FaultyNode) -> Path:
    return node.state / "journal"


def several_kubelets(node: FaultyNode) -> None:
    process(node.root, 5, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=0-15")


def config_deleted(node: FaultyNode) -> None:
    node.config.unlink()


def reserves_too_much(node: FaultyNode) -> None:
    node.config.write_text("cpuManagerPolicy: static\nkubeReserved: {cpu: '1000'}\n")


def configz_file_missing(node: FaultyNode) -> None:
    node.flags.append(f"--kubelet-configz=file:{node.root}/configz")


def configz_hangs(node: FaultyNode) -> None:
    listener = node.listeners.enter_context(socket.create_server(("127.0.0.1", 0)))
    node.flags.append(f"--kubelet-configz=http://127.0.0.1:{listener.getsockname()[1]}/configz")


def pod_resources_absent(node: FaultyNode) -> None:
    node.pod_resources.unlink(missing_ok=True)


def pod_resources_garbage(node: FaultyNode) -> None:
    listener = node.listeners.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(node.pod_resources))
    listener.listen()

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    connection.sendall(b"\xff" * 4096)

    threading.Thread(target=answer, daemon=True).start()
    node.listeners.callback(listener.shutdown, socket.SHUT_RDWR)


def no_driver(node: FaultyNode) -> None:
    add_function(node.root, "pci0000:17/0000:17:00.0", NVIDIA)


def pci_unreadable(node: FaultyNode) -> None:
    listing = node.root / "sys/bus/pci"
    listing.mkdir(parents=True)
    (listing / "devices").symlink_to("devices")


def rdma_garbage(node: FaultyNode) -> None:
    found = add_function(node.root, "pci0000:17/0000:17:00.0")
    write_files(
        found,
        {
            "infiniband/mlx5_0/node_guid": "0\n",
            "infiniband/mlx5_0/ports/1/state": "what",
            "infiniband_verbs/uverbs0/ibdev": "mlx5_0\n",
            "infiniband_verbs/uverbs0/dev": "c",
        },
    )


def fpga_garbage(node: FaultyNode) -> None:
    write_files(
        node.root / "sys/class", {"fpga_region/region0/dfl-fme.0/dev": "c", "fpga_region/x": ""}
    )


def node_annotation(node: FaultyNode) -> None:
    store = EmbeddedStore(str(node.state / "objects"))
    notes = {"node.koordinator.sh/reservation": "{", "node.koordinator.sh/system-qos-resource": "["}
    store.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "annotations": notes}}
    )


def no_inotify(node: FaultyNode) -> None:
    node.refused.append("inotify")


def no_uevents(node: FaultyNode) -> None:
    node.refused.append("uevents")


def no_limits_of_the_lock_folder(node: FaultyNode) -> None:
    node.flags.append("--hami-core-library=/opt/libvgpu.so")


S = SourceName
BOTH: list[tuple[Fault, SourceName]] = [
    (is_a_folder(memory_manager_state), S.MEMORY_MANAGER_STATE),
    (is_torn(cpu_manager_state), S.CPU_MANAGER_STATE),
    (is_a_folder(device_checkpoint), S.DEVICE_CHECKPOINT),
    (config_deleted, S.KUBELET_CONFIG),
    (reserves_too_much, S.KUBELET_RESERVATION),
    (several_kubelets, S.KUBELET_PROCESS),
    (pod_resources_absent, S.POD_RESOURCES),
    (pod_resources_garbage, S.POD_RESOURCES),
    (node_annotation, S.NODE_OBJECT),
]
"""One or two faults of each source: the tests of its reader have the others."""
AT_START: list[tuple[Fault, SourceName]] = [
    (configz_file_missing, S.KUBELET_CONFIGZ),
    (configz_hangs, S.KUBELET_CONFIGZ),
    (no_driver, S.DEVICES),
    (pci_unreadable, S.DEVICES),
    (rdma_garbage, S.DEVICES),
    (fpga_garbage, S.DEVICES),
    (is_a_folder(cluster_memory), S.CLUSTER_MEMORY),
    (is_torn(snapshot), S.SNAPSHOT),
    (is_garbage(journal), S.JOURNAL),
    (no_inotify, S.CGROUP_WATCH),
    (no_inotify, S.KUBELET_WATCH),
    (no_uevents, S.UEVENTS),
    (no_limits_of_the_lock_folder, S.LOCK_FOLDER),
]


def parameters(cases: list[tuple[Fault, SourceName]]) -> list[object]:
    return [
        pytest.param(fault, source, id=f"{source.value}-{fault.__qualname__.partition('.')[0]}")
        for fault, source in cases
    ]


@pytest.mark.parametrize(("fault", "source"), parameters(BOTH + AT_START))
def test_the_agent_starts_without_a_source(
    node: FaultyNode, fault: Fault, source: SourceName
) -> None:
    fault(node)
    node.start()
    node.check_cpus()
    eventually("the source is reported", lambda: node.is_reported(source))


@pytest.mark.parametrize(("fault", "source"), parameters(BOTH))
def test_the_agent_continues_when_a_source_fails(
    node: FaultyNode, fault: Fault, source: SourceName
) -> None:
    node.start()
    node.check_cpus()
    fault(node)
    node.trigger_reads()
    eventually("the source is reported", lambda: node.is_reported(source))
    node.check_cpus()


def test_an_unreachable_api_server_does_not_stop_the_agent(
    node: FaultyNode, tmp_path: Path
) -> None:
    """Nothing listens at the address of the API server."""
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("x")
    words = [each for each in node.harness.node.agent_words if each != "--standalone"]
    node.harness.node.agent_words = tuple(words)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [
                    {"name": "c", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
                ],
                "users": [{"name": "u", "user": {"token": "x"}}],
            }
        )
    )
    node.flags.append(f"--kubeconfig={kubeconfig}")
    node.start()
    node.check_cpus()
    page = f"http://127.0.0.1:{node.port}/metrics"

    def counted() -> bool:
        with urllib.request.urlopen(page, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return any(
            each.startswith("topolet_cluster_problems ") and not each.endswith(" 0")
            for each in lines
        )

    eventually("the problem is counted", counted)


@pytest.mark.parametrize("path", ["sys/devices/system/node", "sys/devices/system/cpu/cpu0/cache"])
def test_the_agent_runs_without_numa_nodes_or_caches_in_sysfs(node: FaultyNode, path: str) -> None:
    """Neither NUMA nodes nor caches are needed to separate owners."""
    shutil.rmtree(node.root / path, ignore_errors=True)
    node.start()
    node.check_cpus()


def test_a_source_that_returns_is_reported_and_used(node: FaultyNode) -> None:
    node.config.unlink()
    node.start()
    eventually("the source is reported", lambda: node.is_reported(SourceName.KUBELET_CONFIG))
    node.config.write_text("cpuManagerPolicy: none\n")
    node.trigger_reads()
    eventually(
        "the agent reads the file again", lambda: not node.is_reported(SourceName.KUBELET_CONFIG)
    )
    assert "kubelet-config: can be used again" in node.harness.launcher.log()
