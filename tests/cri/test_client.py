"""Verbose statuses of containerd 1.7 and 2, and of CRI-O, and limits of replies."""

from __future__ import annotations

import json

import pytest
from google.protobuf.message import Message

from agent.allocate.device_holders.reported_devices import Carriers
from agent.cri.client import (
    MAX_INFO_BYTES,
    MAX_ITEMS,
    MAX_NAMES_BYTES,
    Cri,
    cdi_dirs_of,
    device_carriers,
    status_of,
)
from agent.model.linux_resources import NO_QUOTA, CpuQuota
from agent.model.verdict import Code
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError

CONTAINERD = {
    "pid": 77,
    "config": {
        "envs": [{"key": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-1"}, {"key": "A"}],
        "mounts": [{"container_path": "/data", "host_path": "/x"}],
        "devices": [
            {"container_path": "/dev/card", "host_path": "/dev/nvidia0", "permissions": "rw"}
        ],
        "CDI_devices": [{"name": "nvidia.com/gpu=1"}],
        "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"},
        "linux": {"security_context": {"privileged": True}},
    },
    "runtimeSpec": {
        "process": {"env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=GPU-2", "EMPTY"]},
        "mounts": [{"destination": "/data", "source": "/x"}, {"destination": "/proc"}],
        "annotations": {"io.kubernetes.cri.container-type": "container"},
        "linux": {
            "devices": [
                {"path": "/dev/card", "type": "c", "major": 195, "minor": 0},
                {"path": "/dev/infiniband/uverbs0", "type": "c", "major": 231, "minor": 192},
            ]
        },
    },
}


def test_carriers_from_containerd() -> None:
    assert device_carriers(json.dumps(CONTAINERD)) == Carriers(
        (
            ("NVIDIA_VISIBLE_DEVICES", "GPU-1"),
            ("A", ""),
            ("PATH", "/bin"),
            ("NVIDIA_VISIBLE_DEVICES", "GPU-2"),
            ("EMPTY", ""),
        ),
        ("nvidia.com/gpu=1", "nvidia.com/gpu=0"),
        (("io.kubernetes.cri.container-type", "container"),),
        ("/data", "/proc"),
        ("/dev/nvidia0", "/dev/infiniband/uverbs0"),
        True,
    )


def test_the_runtime_spec_overrides_the_request() -> None:
    """A plugin in the runtime (NRI) changes the specification after the request."""
    config = {
        "mounts": [{"container_path": "/var/run/nvidia-container-devices/GPU-1"}],
        "annotations": {"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=0", "cdi.k8s.io/x": "a.example/b=0"},
    }
    spec: dict[str, object] = {
        "mounts": [{"destination": "/var/run/nvidia-container-devices/GPU-2"}]
    }
    found = device_carriers(json.dumps({"config": config, "runtimeSpec": spec}))
    assert found.mounts == ("/var/run/nvidia-container-devices/GPU-2",)
    # The runtime itself reads these from the request.
    assert found.cdi_devices == ("a.example/b=0",)
    assert found.annotations == ()
    without_spec = device_carriers(json.dumps({"config": config}))
    assert without_spec.mounts == ("/var/run/nvidia-container-devices/GPU-1",)
    assert without_spec.cdi_devices == ("nvidia.com/gpu=0", "a.example/b=0")
    spec["annotations"] = {
        "nvidia.cdi.k8s.io/x": "nvidia.com/gpu=1",
        "nvidia.cdi.k8s.io/pods": "nvidia.com/gpu=2",
    }
    annotated = device_carriers(json.dumps({"config": config, "runtimeSpec": spec}))
    assert annotated.cdi_devices == ("nvidia.com/gpu=1", "a.example/b=0")
    assert annotated.annotations == (("nvidia.cdi.k8s.io/pods", "nvidia.com/gpu=2"),)


def test_carriers_from_cri_o() -> None:
    status = {"privileged": True, "runtimeSpec": CONTAINERD["runtimeSpec"]}
    found = device_carriers(json.dumps(status))
    assert found.privileged
    assert dict(found.environment)["NVIDIA_VISIBLE_DEVICES"] == "GPU-2"
    assert found.nodes == ("/dev/card", "/dev/infiniband/uverbs0")


@pytest.mark.parametrize("text", ["", "{}", "[", '{"config":null,"runtimeSpec":{"process":null}}'])
def test_an_empty_verbose_status_has_no_carriers(text: str) -> None:
    assert device_carriers(text) == Carriers()


OF_CONTAINERD: dict[str, object] = {"containerd": {"snapshotter": "overlayfs"}}


@pytest.mark.parametrize(
    ("config", "dirs"),
    [
        (OF_CONTAINERD | {"enableCDI": True, "cdiSpecDirs": ["/a", "/b"]}, ("/a", "/b")),
        (OF_CONTAINERD | {"cdiSpecDirs": ["/a"]}, ("/a",)),
        (OF_CONTAINERD | {"enableCDI": False, "cdiSpecDirs": ["/a"]}, ()),
        (OF_CONTAINERD | {"enableCDI": True, "cdiSpecDirs": None}, ()),
        (OF_CONTAINERD, ()),
        ({"sandboxImage": "pause"}, None),
        ([], None),
    ],
)
def test_where_a_runtime_looks_for_cdi_files(config: object, dirs: tuple[str, ...] | None) -> None:
    """By the configuration of containerd 1.6 to 2.4; CRI-O says nothing."""
    assert cdi_dirs_of(json.dumps(config)) == dirs


class FakeStatus(Cri):
    """A client of a runtime with one sandbox, whose verbose status has this text under `info`."""

    def __init__(self, info: str) -> None:
        super().__init__("/nowhere")
        self._info = info

    def _reply(self, method: str, request: Message) -> bytes:
        assert method == "PodSandboxStatus"
        return pb.PodSandboxStatusResponse(info={"info": self._info}).SerializeToString()


@pytest.mark.parametrize(
    ("resources", "unequal"),
    [
        ({"cpu_period": 100_000, "cpu_quota": 200_000, "cpu_shares": 2048}, ""),
        (
            {"cpu_period": 100_000, "cpu_quota": 400_000, "cpu_shares": 2048},
            "its sandbox: requests.cpu is 2, limits.cpu is 4",
        ),
        ({"cpu_shares": 2048}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_a_sandbox_of_containerd_shows_the_sums_of_its_pod(resources: object, unequal: str) -> None:
    linux = {"cgroup_parent": "/kubepods/podp", "resources": resources}
    spec = {"linux": {"cgroupsPath": "/kubepods/podp/s", "resources": {"cpu": {"shares": 2}}}}
    found = FakeStatus(json.dumps({"pid": 7, "config": {"linux": linux}, "runtimeSpec": spec}))
    status = found.sandbox_status("s")
    assert (status.cgroup_parent, status.resources.shares) == ("/kubepods/podp", 2)
    assert status.unequal == unequal


@pytest.mark.parametrize(
    ("requested", "spec"),
    [
        (None, [{"pageSize": "2MB", "limit": 4 << 20}, {"pageSize": "1GB", "limit": 0}]),
        ([{"page_size": "2MB", "limit": 4 << 20}], None),
    ],
)
def test_huge_pages_of_a_container(requested: object, spec: object) -> None:
    config = {"linux": {"resources": {"hugepage_limits": requested}}}
    runtime_spec = {"linux": {"resources": {"hugepageLimits": spec}}}
    found = FakeStatus(json.dumps({"config": config, "runtimeSpec": runtime_spec}))
    assert found.sandbox_status("s").resources.hugepages == {2 << 20: 4 << 20}


@pytest.mark.parametrize("text", ["a" * (MAX_INFO_BYTES + 1), "[" + "1," * (1 << 18) + "1]"])
def test_a_status_beyond_its_limits_is_an_error_of_its_own(text: str) -> None:
    runtime = FakeStatus(text)
    with pytest.raises(RpcError, match="more than") as raised:
        runtime.sandbox_status("s")
    assert raised.value.code == Code.RESOURCE_EXHAUSTED


class FakeLists(Cri):
    """A client of a runtime with `count` sandboxes and containers; `text` is each id and name."""

    def __init__(self, count: int, text: str) -> None:
        super().__init__("/nowhere")
        self._count, self._text = count, text

    def _reply(self, method: str, request: Message) -> bytes:
        if method == "ListPodSandbox":
            pod = pb.PodSandboxMetadata(name=self._text, uid=self._text, namespace=self._text)
            sandbox = pb.PodSandbox(id=self._text, metadata=pod)
            return pb.ListPodSandboxResponse(items=[sandbox] * self._count).SerializeToString()
        metadata = pb.ContainerMetadata(name=self._text)
        container = pb.Container(id=self._text, pod_sandbox_id=self._text, metadata=metadata)
        return pb.ListContainersResponse(containers=[container] * self._count).SerializeToString()


def test_a_list_of_as_many_containers_as_a_node_can_have_is_read() -> None:
    runtime = FakeLists(MAX_ITEMS, "a" * 40)
    assert len(runtime.sandboxes()) == len(runtime.containers()) == MAX_ITEMS


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (MAX_ITEMS + 1, "a"),
        (MAX_ITEMS, "a" * (MAX_NAMES_BYTES // MAX_ITEMS)),
        # Python stores every character of a text in the size of its widest one.
        (MAX_ITEMS, "\U0001f600" + "a" * (MAX_NAMES_BYTES // MAX_ITEMS // 4)),
    ],
)
def test_a_list_of_more_than_a_node_can_have_is_refused(count: int, text: str) -> None:
    runtime = FakeLists(count, text)
    for call in (runtime.sandboxes, runtime.containers):
        with pytest.raises(RpcError, match="more than"):
            call()


@pytest.mark.parametrize(
    ("cpu", "quota"),
    [
        ({"quota": 50_000, "period": 20_000}, CpuQuota(50_000, 20_000)),
        ({"quota": 50_000, "period": 100_000}, CpuQuota(50_000)),
        ({"quota": 50_000}, CpuQuota(50_000)),
        ({"quota": -1, "period": 20_000}, NO_QUOTA),
        ({"period": 20_000}, None),
        ({}, None),
    ],
)
def test_a_stored_quota_is_read_with_its_period(
    cpu: dict[str, int], quota: CpuQuota | None
) -> None:
    """A kubelet with another cpuCFSQuotaPeriod than the kernel's default sets both."""
    info = json.dumps({"runtimeSpec": {"linux": {"resources": {"cpu": cpu}}}})
    assert status_of(info).resources.quota == quota
