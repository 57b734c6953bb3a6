"""Every source that the agent can do without is taken away: before its start and while it runs. The
agent starts, continues, keeps the cpusets correct, and reports the source."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.kube.store import EmbeddedStore
from agent.node.sources import SourceName
from tests.discover.buses import plug, put
from tests.faults.conftest import Around
from tests.fixtures.ports import free_port
from tests.node.procfs import process
from tests.waiting import eventually

POLICY_NONE = '{"policyName":"none","defaultCpuSet":"","checksum":0}'
NVIDIA = {"class": "0x030200\n", "vendor": "0x10de\n", "device": "0x2330\n"}


class Place:
    """A node whose sources can all be taken away from its agent."""

    def __init__(self, around: Around, folder: Path) -> None:
        self.around = around
        self.root = folder / "machine"
        self.kubelet = folder / "kubelet"
        self.state = around.node.state
        self.pod_resources = folder / "pod-resources.sock"
        self.flags = [f"--pod-resources-socket={self.pod_resources}"]
        self.words = ["kubelet", "--config=/etc/kubelet.yaml"]
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
        self.own = around.running("LSE", "1-2")
        self.ls = around.running("LS")

    def process(self) -> None:
        process(self.root, 70, *self.words)

    def start(self) -> None:
        flags = ["--period-seconds=0.1", f"--http=127.0.0.1:{self.port}", *self.flags]
        self.around.start(*flags, refused=self.refused)

    def poke(self) -> None:
        """The kubelet writes its state, which triggers its readers."""
        file = self.kubelet / "cpu_manager_state"
        if file.is_file():
            file.write_bytes(file.read_bytes())

    def right(self) -> None:
        """Owner and others have their CPUs, and so has a new one."""
        late = self.around.running("LS")
        eventually("the new pod has its CPUs", lambda: self.around.cpus(late) == "0,3-15")
        eventually("the others are", lambda: self.around.cpus(self.ls) == "0,3-15")
        assert self.around.cpus(self.own) == "1-2"
        assert self.around.launcher.running, self.around.launcher.log()

    def named(self, source: SourceName) -> bool:
        """Whether metric and log name the source."""
        series = f'topolet_source_problems{{source="{source.value}"}} '
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
        counted = [each for each in lines if each.startswith(series) and not each.endswith(" 0.0")]
        return bool(counted) and f'msg="{source.value}: ' in self.around.launcher.log()


@pytest.fixture
def place(around: Around, tmp_path: Path) -> Iterator[Place]:
    it = Place(around, tmp_path)
    with it.listeners:
        yield it


Take = Callable[[Place], None]


def torn(path: Callable[[Place], Path]) -> Take:
    def take(place: Place) -> None:
        path(place).write_text('{"policyName":"sta')

    return take


def folder(path: Callable[[Place], Path]) -> Take:
    def take(place: Place) -> None:
        path(place).unlink(missing_ok=True)
        path(place).mkdir()

    return take


def garbage(path: Callable[[Place], Path]) -> Take:
    def take(place: Place) -> None:
        path(place).write_bytes(b"\xff\0\n" * 1000)

    return take


def cpu_manager_state(place: Place) -> Path:
    return place.kubelet / "cpu_manager_state"


def memory_manager_state(place: Place) -> Path:
    return place.kubelet / "memory_manager_state"


def device_checkpoint(place: Place) -> Path:
    return place.checkpoint


def kubelet_config(place: Place) -> Path:
    return place.config


def cluster_memory(place: Place) -> Path:
    return place.state / "cluster.json"


def snapshot(place: Place) -> Path:
    return place.state / "snapshot.json"


def journal(place: Place) -> Path:
    return place.state / "journal"


def several_kubelets(place: Place) -> None:
    process(place.root, 5, "kubelet", "--cpu-manager-policy=static", "--reserved-cpus=0-15")


def doubtful_kubelet(place: Place) -> None:
    (process(place.root, 5, "kubelet") / "cgroup").write_text("")


def no_procfs(place: Place) -> None:
    shutil.rmtree(place.root / "proc")


def config_gone(place: Place) -> None:
    place.config.unlink()


def config_elsewhere(place: Place) -> None:
    place.words = ["kubelet", "--config=/home/kubernetes/kubelet-config.yaml"]
    place.process()


def drop_ins_elsewhere(place: Place) -> None:
    place.words.append("--config-dir=/opt/kubelet.conf.d")
    place.process()


def reserves_too_much(place: Place) -> None:
    place.config.write_text("cpuManagerPolicy: static\nkubeReserved: {cpu: '1000'}\n")


def configz_gone(place: Place) -> None:
    place.flags.append(f"--kubelet-configz=file:{place.root}/configz")


def configz_without_token(place: Place) -> None:
    place.flags.append(f"--kubelet-configz=https://127.0.0.1:{free_port()}/configz")
    place.flags.append("--kubelet-token-file=/nowhere/token")


def configz_hangs(place: Place) -> None:
    listener = place.listeners.enter_context(socket.create_server(("127.0.0.1", 0)))
    place.flags.append(f"--kubelet-configz=http://127.0.0.1:{listener.getsockname()[1]}/configz")


def pod_resources_absent(place: Place) -> None:
    place.pod_resources.unlink(missing_ok=True)


def pod_resources_no_socket(place: Place) -> None:
    place.pod_resources.write_text("")


def pod_resources_garbage(place: Place) -> None:
    listener = place.listeners.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(place.pod_resources))
    listener.listen()

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as connection:
                    connection.sendall(b"\xff" * 4096)

    threading.Thread(target=answer, daemon=True).start()
    place.listeners.callback(listener.shutdown, socket.SHUT_RDWR)


def no_driver(place: Place) -> None:
    plug(place.root, "pci0000:17/0000:17:00.0", NVIDIA)


def pci_unreadable(place: Place) -> None:
    listing = place.root / "sys/bus/pci"
    listing.mkdir(parents=True)
    (listing / "devices").symlink_to("devices")


def rdma_garbage(place: Place) -> None:
    found = plug(place.root, "pci0000:17/0000:17:00.0")
    put(
        found,
        {
            "infiniband/mlx5_0/node_guid": "0\n",
            "infiniband/mlx5_0/ports/1/state": "what",
            "infiniband_verbs/uverbs0/ibdev": "mlx5_0\n",
            "infiniband_verbs/uverbs0/dev": "c",
        },
    )


def fpga_garbage(place: Place) -> None:
    put(place.root / "sys/class", {"fpga_region/region0/dfl-fme.0/dev": "c", "fpga_region/x": ""})


def node_annotation(place: Place) -> None:
    store = EmbeddedStore(str(place.state / "objects"))
    notes = {"node.koordinator.sh/reservation": "{", "node.koordinator.sh/system-qos-resource": "["}
    store.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "annotations": notes}}
    )


def no_inotify(place: Place) -> None:
    place.refused.append("inotify")


def no_uevents(place: Place) -> None:
    place.refused.append("uevents")


def no_limits_of_the_lock_folder(place: Place) -> None:
    place.flags.append("--hami-core-library=/opt/libvgpu.so")


S = SourceName
BOTH: list[tuple[Take, SourceName]] = [
    (torn(memory_manager_state), S.MEMORY_MANAGER_STATE),
    (folder(memory_manager_state), S.MEMORY_MANAGER_STATE),
    (torn(cpu_manager_state), S.CPU_MANAGER_STATE),
    (garbage(cpu_manager_state), S.CPU_MANAGER_STATE),
    (folder(cpu_manager_state), S.CPU_MANAGER_STATE),
    (torn(device_checkpoint), S.DEVICE_CHECKPOINT),
    (garbage(device_checkpoint), S.DEVICE_CHECKPOINT),
    (folder(device_checkpoint), S.DEVICE_CHECKPOINT),
    (garbage(kubelet_config), S.KUBELET_CONFIG),
    (folder(kubelet_config), S.KUBELET_CONFIG),
    (config_gone, S.KUBELET_CONFIG),
    (config_elsewhere, S.KUBELET_CONFIG),
    (drop_ins_elsewhere, S.KUBELET_CONFIG),
    (reserves_too_much, S.KUBELET_RESERVATION),
    (several_kubelets, S.KUBELET_PROCESS),
    (doubtful_kubelet, S.KUBELET_PROCESS),
    (no_procfs, S.KUBELET_PROCESS),
    (pod_resources_absent, S.POD_RESOURCES),
    (pod_resources_no_socket, S.POD_RESOURCES),
    (pod_resources_garbage, S.POD_RESOURCES),
    (node_annotation, S.NODE_OBJECT),
]
AT_START: list[tuple[Take, SourceName]] = [
    (configz_gone, S.KUBELET_CONFIGZ),
    (configz_without_token, S.KUBELET_CONFIGZ),
    (configz_hangs, S.KUBELET_CONFIGZ),
    (no_driver, S.DEVICES),
    (pci_unreadable, S.DEVICES),
    (rdma_garbage, S.DEVICES),
    (fpga_garbage, S.DEVICES),
    (torn(cluster_memory), S.CLUSTER_MEMORY),
    (folder(cluster_memory), S.CLUSTER_MEMORY),
    (torn(snapshot), S.SNAPSHOT),
    (garbage(journal), S.JOURNAL),
    (folder(journal), S.JOURNAL),
    (no_inotify, S.CGROUP_WATCH),
    (no_inotify, S.KUBELET_WATCH),
    (no_uevents, S.UEVENTS),
    (no_limits_of_the_lock_folder, S.LOCK_FOLDER),
]


def named(cases: list[tuple[Take, SourceName]]) -> list[object]:
    return [
        pytest.param(take, source, id=f"{source.value}-{take.__qualname__.partition('.')[0]}")
        for take, source in cases
    ]


@pytest.mark.parametrize(("take", "source"), named(BOTH + AT_START))
def test_a_start_without_a_source(place: Place, take: Take, source: SourceName) -> None:
    take(place)
    place.start()
    place.right()
    eventually("it is named", lambda: place.named(source))


@pytest.mark.parametrize(("take", "source"), named(BOTH))
def test_a_source_is_lost_while_the_agent_runs(
    place: Place, take: Take, source: SourceName
) -> None:
    place.start()
    place.right()
    take(place)
    place.poke()
    eventually("it is named", lambda: place.named(source))
    place.right()


def test_an_unreachable_api_server_does_not_stop_the_agent(place: Place, tmp_path: Path) -> None:
    """The API server, at an address without a listener."""
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("x")
    words = [each for each in place.around.node.agent_words if each != "--standalone"]
    place.around.node.agent_words = tuple(words)
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
    place.flags.append(f"--kubeconfig={kubeconfig}")
    place.start()
    place.right()
    page = f"http://127.0.0.1:{place.port}/metrics"

    def counted() -> bool:
        with urllib.request.urlopen(page, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return any(
            each.startswith("topolet_cluster_problems ") and not each.endswith(" 0.0")
            for each in lines
        )

    eventually("its troubles are counted", counted)


@pytest.mark.parametrize("path", ["sys/devices/system/node", "sys/devices/system/cpu/cpu0/cache"])
def test_a_machine_with_fewer_files(place: Place, path: str) -> None:
    """Neither NUMA nodes nor caches are needed to separate owners."""
    shutil.rmtree(place.root / path, ignore_errors=True)
    place.start()
    place.right()


def test_a_source_that_returns_is_reported_and_used(place: Place) -> None:
    place.config.unlink()
    place.start()
    eventually("it is named", lambda: place.named(SourceName.KUBELET_CONFIG))
    place.config.write_text("cpuManagerPolicy: none\n")
    place.poke()
    eventually("it is not", lambda: not place.named(SourceName.KUBELET_CONFIG))
    assert "kubelet-config: can be used again" in place.around.launcher.log()
