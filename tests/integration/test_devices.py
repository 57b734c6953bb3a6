"""The devices that real containers get: environment, mounts, nodes and device cgroup.

Cards are device nodes without a driver, with the names of NVIDIA's.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from agent.allocate.visibility.pod_devices import (
    ContainerDeviceRequest,
    DevicePod,
    Isolation,
    held,
    pod_visibility,
)
from agent.cri.client import Cri
from agent.host import files
from agent.model import snapshot as snapshots
from agent.model.devices.device_files import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices.device_object import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from agent.model.devices.device_request import TypeRequest
from agent.model.devices.visibility import (
    MOUNT_ROOT,
    VISIBLE_DEVICES,
    DeviceNode,
    NodeVisibility,
    VisibleGpu,
)
from agent.model.linux_resources import LinuxResources
from agent.model.pod.annotations import DEVICE_ALLOCATED, GPU_ISOLATION_PROVIDER
from agent.model.pod.qos import QoS
from agent.model.snapshot import PodWanted, Wanted
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError
from tests.fixtures.containerd import Containerd
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    large_environment,
    run_sandbox,
    start_container,
)
from tests.integration import devicefiles
from tests.integration.harness import TestNode, fresh_node, kernel_group
from tests.integration.nri_node import EMPTY, NriNode, nri_node
from tests.waiting import eventually

MAJOR = 240
"""A major number for experiments, which no driver uses."""
KIND = "nvidia.com/gpu"
ONE, TWO, THREE = "GPU-one", "GPU-two", "GPU-three"


def node_of(path: str, minor: int) -> DeviceNode:
    return DeviceNode(path, MAJOR, minor)


CARDS = tuple(
    CardFiles(VisibleGpu(uuid, str(index), (node_of(f"/dev/nvidia{minor}", minor),)), minor)
    for index, (uuid, minor) in enumerate([(ONE, 241), (TWO, 242), (THREE, 243)])
)
FILES = DeviceFiles(
    CARDS,
    (OtherFiles("rdma", "0000:17:00.0", 0, (node_of("/dev/infiniband/uverbs244", 244),)),),
    {"rdma": (node_of("/dev/infiniband/rdma_cm245", 245),)},
)


@pytest.fixture(scope="module", autouse=True)
def cards() -> Iterator[None]:
    """The device files on this machine."""
    nodes = [node for card in CARDS for node in card.gpu.nodes]
    nodes += [*FILES.others[0].nodes, *FILES.common["rdma"]]
    with devicefiles.present("cards", {each.path: (each.major, each.minor) for each in nodes}):
        yield


class ContainerView(msgspec.Struct):
    """A running container's environment variables, mount points, device nodes with their minors,
    and the permissions of its device cgroup by minor."""

    environment: dict[str, str]
    mounts: set[str]
    nodes: dict[str, int]
    allowed: dict[int, str]


class DeviceTest:
    """A node whose agent the test simulates: it writes snapshots for pods and their requests."""

    def __init__(self, node: TestNode, cri: Cri) -> None:
        self.node = node
        self.cri = cri
        self._pods: list[DevicePod] = []
        self._sandboxes: dict[str, str] = {}
        self.cdi_kind = ""
        self.isolation = Isolation()

    def pod(
        self, name: str, allocation: dict[str, object] | None, *pod_requests: ContainerDeviceRequest
    ) -> PodSpec:
        """Adds a pod with this annotation device-allocated to the simulated agent's pods."""
        notes = {} if allocation is None else {DEVICE_ALLOCATED: json.dumps(allocation)}
        spec = self.node.spec(name, "LS", annotations=notes)
        labels = {GPU_ISOLATION_PROVIDER: "HAMi-core"}
        self._pods.append(
            DevicePod(spec.uid, f"default/{name}", notes, labels, pod_requests or None)
        )
        self.publish()
        return spec

    def run(
        self, spec: PodSpec, config: Callable[[pb.ContainerConfig], None], name: str = "main"
    ) -> ContainerView:
        """Creates and starts a container of the pod; what it sees. Raises RpcError."""
        if spec.uid not in self._sandboxes:
            self._sandboxes[spec.uid] = run_sandbox(self.cri, spec)
        request = create_request(spec, self._sandboxes[spec.uid], name)
        config(request.config)
        container = create_container(self.cri, request)
        start_container(self.cri, container)
        return self._seen(self.node.direct.container_status(container).pid)

    def publish(self) -> None:
        decided = pod_visibility(self._pods, FILES, self.isolation)
        pods = {
            pod.uid: PodWanted(pod.title, QoS.LS, Wanted(LinuxResources("0-1"))).with_visible(
                it.each, it.containers
            )
            for pod in self._pods
            if (it := decided.get(pod.uid)) is not None
        }
        snapshot = msgspec.structs.replace(
            EMPTY,
            listed_at=time.monotonic_ns(),
            pods=pods,
            devices=NodeVisibility(held(FILES, decided), cdi_kind=self.cdi_kind),
        )
        self.node.state.mkdir(exist_ok=True)
        path = str(self.node.state / "snapshot.json")
        files.replace(path, snapshots.encode(snapshot), durable=False)

    def _seen(self, pid: int) -> ContainerView:
        process = pathlib.Path(f"/proc/{pid}")
        eventually("its program runs", lambda: b"sleep" in process.joinpath("cmdline").read_bytes())
        variables = process.joinpath("environ").read_bytes().decode().split("\0")
        root = process / "root"
        nodes = {}
        for path in [*root.glob("dev/nvidia*"), *root.glob("dev/infiniband/*")]:
            number = path.lstat().st_rdev
            assert os.major(number) == MAJOR
            nodes["/" + str(path.relative_to(root))] = os.minor(number)
        allowed = re.findall(
            rf"^c {MAJOR}:(\d+) (\w+)$",
            kernel_group(pid, "devices").joinpath("devices.list").read_text(),
            re.MULTILINE,
        )
        return ContainerView(
            dict(each.split("=", 1) for each in variables if "=" in each),
            {line.split()[4] for line in process.joinpath("mountinfo").read_text().splitlines()},
            nodes,
            {int(minor): "".join(sorted(how)) for minor, how in allowed},
        )


@contextlib.contextmanager
def relayed(containerd: Containerd) -> Iterator[DeviceTest]:
    with fresh_node(containerd) as node:
        node.start_proxy("--hold-seconds=0.2")
        yield DeviceTest(node, node.proxied)


@pytest.fixture
def relay(containerd: Containerd) -> Iterator[DeviceTest]:
    """Containers pass the relay, on this machine's containerd."""
    with relayed(containerd) as it:
        yield it


@pytest.fixture
def nri(containerd2: Containerd) -> Iterator[NriNode]:
    with nri_node(containerd2) as it:
        yield it


@pytest.fixture
def plugin(nri: NriNode) -> DeviceTest:
    """Containers pass the NRI plugin, on containerd 2."""
    it = DeviceTest(nri.node, nri.node.direct)
    it.publish()
    nri.start_plugin("--hold-seconds=0.2")
    return it


@pytest.fixture(params=["relay", "plugin"])
def frontend(request: pytest.FixtureRequest) -> DeviceTest:
    it: DeviceTest = request.getfixturevalue(request.param)
    return it


def entry(minor: int, percent: int = 100) -> dict[str, object]:
    resources = {GPU_CORE: percent, GPU_MEMORY_RATIO: percent, GPU_MEMORY: percent << 20}
    return {"minor": minor, "resources": resources}


def device_request(name: str, count: int = 1) -> ContainerDeviceRequest:
    return ContainerDeviceRequest(
        name, {"gpu": TypeRequest({GPU_CORE: 100 * count}, count, {GPU_CORE: 100})}
    )


def by_variable(*uuids: str) -> Callable[[pb.ContainerConfig], None]:
    """Names the cards as a device plugin does, in a variable and by device nodes."""

    def configure(config: pb.ContainerConfig) -> None:
        config.envs.add(key=VISIBLE_DEVICES, value=",".join(uuids).encode())
        for card in CARDS:
            if card.gpu.uuid in uuids:
                path = card.gpu.nodes[0].path
                config.devices.add(host_path=path, container_path=path, permissions="rw")

    return configure


def by_mounts(*uuids: str) -> Callable[[pb.ContainerConfig], None]:
    def configure(config: pb.ContainerConfig) -> None:
        config.envs.add(key=VISIBLE_DEVICES, value=MOUNT_ROOT.encode())
        for each in uuids:
            config.mounts.add(host_path="/dev/null", container_path=f"{MOUNT_ROOT}/{each}")

    return configure


def by_cdi(*uuids: str) -> Callable[[pb.ContainerConfig], None]:
    def configure(config: pb.ContainerConfig) -> None:
        for each in uuids:
            config.CDI_devices.add(name=f"{KIND}={each}")

    return configure


def no_devices(config: pb.ContainerConfig) -> None:
    pass


def test_the_allocated_card_replaces_the_plugins(
    frontend: DeviceTest, request: pytest.FixtureRequest
) -> None:
    spec = frontend.pod("p", {"gpu": [entry(242)]}, device_request("main"))
    seen = frontend.run(spec, by_variable(ONE))
    assert seen.environment[VISIBLE_DEVICES] == TWO
    left = {"/dev/nvidia241": 241} if request.node.callspec.params["frontend"] == "plugin" else {}
    assert seen.nodes == {"/dev/nvidia242": 242, **left}, "NRI does not remove device nodes"
    assert list(seen.allowed) == [242], "the plugin's card is not allowed, even by mknod"
    assert "rw" in seen.allowed[242].replace("m", "")


def test_names_in_mounts_are_replaced(frontend: DeviceTest) -> None:
    spec = frontend.pod("p", {"gpu": [entry(242)]}, device_request("main"))
    seen = frontend.run(spec, by_mounts(ONE, THREE))
    assert seen.environment[VISIBLE_DEVICES] == MOUNT_ROOT
    assert {each for each in seen.mounts if each.startswith(MOUNT_ROOT)} == {f"{MOUNT_ROOT}/{TWO}"}
    spec = frontend.pod("q", {"gpu": [entry(241)]}, device_request("other"))
    seen = frontend.run(spec, by_mounts(ONE))
    assert seen.environment[VISIBLE_DEVICES] == "void"
    assert not {each for each in seen.mounts if each.startswith(MOUNT_ROOT)}


def test_without_a_device_plugin_the_variable_is_set(frontend: DeviceTest) -> None:
    spec = frontend.pod("p", {"gpu": [entry(242), entry(241)]})
    assert frontend.run(spec, no_devices).environment[VISIBLE_DEVICES] == f"{ONE},{TWO}"


def test_rdma_devices_come_with_the_common_device_node(frontend: DeviceTest) -> None:
    spec = frontend.pod(
        "p",
        {"rdma": [{"minor": 0}]},
        ContainerDeviceRequest("main", {"rdma": TypeRequest({}, 1, {})}),
        device_request("other"),
    )
    seen = frontend.run(spec, no_devices)
    assert seen.nodes == {"/dev/infiniband/uverbs244": 244, "/dev/infiniband/rdma_cm245": 245}
    assert set(seen.allowed) == {244, 245}
    assert VISIBLE_DEVICES not in seen.environment
    assert not frontend.run(spec, no_devices, "other").allowed


def test_a_share_of_a_card_is_enforced(frontend: DeviceTest, tmp_path: pathlib.Path) -> None:
    library = tmp_path / "libvgpu.so"
    library.write_text("no library")
    frontend.isolation = Isolation(str(library), str(tmp_path))
    spec = frontend.pod("p", {"gpu": [entry(241, 50)]})
    seen = frontend.run(
        spec, lambda config: config.envs.add(key="LD_PRELOAD", value=b"/theirs.so") and None
    )
    assert seen.environment[VISIBLE_DEVICES] == ONE
    assert seen.environment["CUDA_DEVICE_MEMORY_LIMIT"] == str(50 << 20)
    assert seen.environment["CUDA_DEVICE_SM_LIMIT"] == "50"
    assert seen.environment["LD_PRELOAD"] == f"{library}:/theirs.so"
    assert {str(library), "/tmp/vgpulock"} <= seen.mounts


def test_a_large_environment_gets_no_card_of_another_pod(frontend: DeviceTest) -> None:
    """Two ConfigMaps in `envFrom` may have 1 MiB each."""
    frontend.pod("owner", {"gpu": [entry(242)]})
    other = frontend.pod("other", None)

    def naming(uuid: str) -> Callable[[pb.ContainerConfig], None]:
        def configure(config: pb.ContainerConfig) -> None:
            large_environment(config, 1_500_000)
            by_variable(uuid)(config)

        return configure

    with pytest.raises(RpcError, match="pod default/other: GPU-two of its request"):
        frontend.run(other, naming(TWO))
    assert set(frontend.run(other, naming(ONE)).allowed) == {241}


def test_the_runtime_refuses_a_container_that_does_not_fit_in_a_plugin_request(
    plugin: DeviceTest,
) -> None:
    """A message of ttrpc has at most 4 MiB."""
    plugin.pod("owner", {"gpu": [entry(242)]})
    other = plugin.pod("other", None)
    with pytest.raises(RpcError, match="exceed"):
        plugin.run(other, lambda config: large_environment(config, 5 << 20))
    assert set(plugin.run(other, by_variable(ONE)).allowed) == {241}, "the plugin still runs"


PRIVILEGED_SANDBOX = b"\x30\x01"
"""Field 6 of the sandbox's security context."""


def test_a_privileged_container_starts_while_other_pods_have_cards(frontend: DeviceTest) -> None:
    """Such as kube-proxy or a network agent: it has all device nodes of the host, and requested
    none."""
    frontend.pod("owner", {"gpu": [entry(242)]})
    spec = frontend.pod("proxy", None)
    config = spec.config()
    config.linux.security_context.MergeFromString(PRIVILEGED_SANDBOX)
    sandbox = frontend.cri.call(
        "RunPodSandbox", pb.RunPodSandboxRequest(config=config), pb.RunPodSandboxResponse
    ).pod_sandbox_id
    request = create_request(spec, sandbox)
    request.sandbox_config.CopyFrom(config)
    request.config.linux.security_context.privileged = True
    container = create_container(frontend.cri, request)
    start_container(frontend.cri, container)
    process = pathlib.Path(f"/proc/{frontend.node.direct.container_status(container).pid}")
    eventually("its program runs", lambda: b"sleep" in process.joinpath("cmdline").read_bytes())
    assert (process / "root/dev/nvidia242").exists()


@pytest.fixture
def specification(containerd2: Containerd) -> None:
    """A CDI specification as NVIDIA's tools write it, with the cards by UUID."""
    devices = [
        {
            "name": card.gpu.uuid,
            "containerEdits": {
                "env": [f"CARD_{card.minor}=1"],
                "deviceNodes": [{"path": card.gpu.nodes[0].path}],
            },
        }
        for card in CARDS
    ]
    everywhere = {"env": [f"{VISIBLE_DEVICES}=void"]}
    body = {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "devices": devices,
        "containerEdits": everywhere,
    }
    folder = containerd2.folder / "cdi"
    folder.mkdir(exist_ok=True)
    folder.joinpath("nvidia.json").write_text(json.dumps(body))


@pytest.mark.usefixtures("specification")
def test_names_of_cdi_are_replaced(containerd2: Containerd) -> None:
    with relayed(containerd2) as relay:
        spec = relay.pod("p", {"gpu": [entry(242)]}, device_request("main"))
        seen = relay.run(spec, by_cdi(ONE, THREE))
        assert [each for each in seen.environment if each.startswith("CARD")] == ["CARD_242"]
        assert (seen.nodes, set(seen.allowed)) == ({"/dev/nvidia242": 242}, {242})
        assert seen.environment[VISIBLE_DEVICES] == "void"
        side = relay.run(spec, by_cdi(ONE), "sidecar")
        assert not side.nodes
        assert not side.allowed

        def by_annotation(config: pb.ContainerConfig) -> None:
            config.annotations["cdi.k8s.io/plugin_x"] = f"{KIND}={ONE}"

        spec = relay.pod("q", {"gpu": [entry(243)]}, device_request("main"))
        assert relay.run(spec, by_annotation).nodes == {"/dev/nvidia243": 243}
        spec = relay.pod("r", {"gpu": [entry(241)]}, device_request("other"))
        assert not relay.run(spec, by_annotation).nodes


@pytest.mark.usefixtures("specification")
def test_a_card_comes_by_cdi_when_the_request_names_none(plugin: DeviceTest) -> None:
    plugin.cdi_kind = KIND
    seen = plugin.run(plugin.pod("p", {"gpu": [entry(242)]}), no_devices)
    assert (seen.nodes, set(seen.allowed)) == ({"/dev/nvidia242": 242}, {242})
    assert seen.environment[VISIBLE_DEVICES] == "void"


@pytest.mark.usefixtures("specification")
def test_cdi_devices_can_be_checked_by_a_plugin_but_not_removed(
    plugin: DeviceTest,
) -> None:
    spec = plugin.pod("p", {"gpu": [entry(242)]})
    with pytest.raises(RpcError, match="removed_cdi_devices"):
        plugin.run(spec, by_cdi(ONE))
    assert plugin.run(spec, by_cdi(TWO)).nodes == {"/dev/nvidia242": 242}


def test_a_pod_whose_allocation_the_agent_cannot_honour_is_refused(node: TestNode) -> None:
    """This machine does not have GPUs. A pod with an allocated GPU of NVIDIA is refused; other pods
    start, also those with devices of other vendors."""
    node.start_agent("--hami-core-library=/opt/libvgpu.so")
    folder = node.state / "vgpulock"
    assert f"lock-folder: {folder} is not a file system of its own" in node.log("agent")
    node.start_proxy()
    notes = {DEVICE_ALLOCATED: json.dumps({"gpu": [{**entry(0), "id": "GPU-unknown"}]})}
    spec = node.spec("p", "LS", annotations=notes)
    with pytest.raises(RpcError, match="pod default/p: gpu GPU-unknown is not on this node"):
        create_container(node.proxied, create_request(spec, run_sandbox(node.proxied, spec)))
    for number, allocation in enumerate([None, {"npu": [entry(0)]}, {"gpu": [entry(0)]}]):
        notes = {} if allocation is None else {DEVICE_ALLOCATED: json.dumps(allocation)}
        spec = node.spec(f"q{number}", "LS", annotations=notes)
        sandbox = run_sandbox(node.proxied, spec)
        assert create_container(node.proxied, create_request(spec, sandbox))
