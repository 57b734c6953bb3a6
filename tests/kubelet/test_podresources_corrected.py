"""The corrected PodResources socket, between a fake kubelet and a client like an exporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.allocate.device_holders.names import Target, keys
from agent.kubelet.podresources import METHODS, SERVICE, CorrectedLister, Known
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.devices.device_object import Device
from agent.model.pod.pod_resources import ContainerCorrection, CorrectedDevice, PodCorrection
from agent.proto import podresources_pb2 as pb
from agent.rpc.server import GrpcServer
from tests.kubelet.fake_kubelet import FakeKubelet, device, memory, serving

GPU, NIC = "nvidia.com/gpu", "example.com/nic"
KEYS: dict[str, Target] = keys(
    [Device("gpu", f"GPU-{number}", number, {}) for number in range(4)]
    + [Device("rdma", "0000:17:00.0", 0, {})]
)


class Exporter:
    """A client of Topolet's PodResources socket. `known`: the agent's corrections."""

    def __init__(self, folder: Path) -> None:
        self.known: Known | None = ({}, KEYS)
        self.lister = CorrectedLister(str(folder / "kubelet.sock"), lambda: self.known)

        def method(name: str):  # type: ignore[no-untyped-def]
            return lambda request, _: self.lister.answer(name, request)

        path = str(folder / "corrected" / "kubelet.sock")
        self.server = GrpcServer(path, SERVICE, {name: method(name) for name in METHODS}, 2, 8)
        self.server.start()
        self.channel = grpc.insecure_channel(f"unix://{path}")

    def raw(self, method: str, request: bytes = b"") -> bytes:
        """Raises grpc.RpcError."""
        reply: bytes = self.channel.unary_unary(f"/{SERVICE}/{method}")(request, timeout=10)
        return reply

    def pods(self) -> list[pb.PodResources]:
        return list(pb.ListPodResourcesResponse.FromString(self.raw("List")).pod_resources)

    def set_corrections(self, **containers: ContainerCorrection) -> None:
        """Sets the corrections of pod ns/p."""
        self.known = ({("ns", "p"): PodCorrection(containers=containers)}, KEYS)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    fake = FakeKubelet()
    with serving(tmp_path / "kubelet.sock", fake):
        yield fake


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    it = Exporter(tmp_path)
    yield it
    it.channel.close()
    it.server.stop(0)
    it.lister.close()


def listed(*containers: pb.ContainerResources, **fields: object) -> pb.PodResources:
    return pb.PodResources(namespace="ns", name="p", containers=containers, **fields)


def container(name: str = "main", **fields: object) -> pb.ContainerResources:
    return pb.ContainerResources(name=name, **fields)


def gpus(*uuids: str) -> ContainerCorrection:
    return ContainerCorrection(
        devices={"gpu": tuple(CorrectedDevice(each, (1,)) for each in uuids)}
    )


def test_unknown_pods_and_fields_pass_unchanged(exporter: Exporter, kubelet: FakeKubelet) -> None:
    """Including fields of a newer kubelet."""
    exporter.set_corrections(main=gpus("GPU-1"))
    other = pb.PodResources(namespace="ns", name="other", containers=[container(cpu_ids=[3])])
    newer = b"\xfa\x3e\x05newer"
    kubelet.answers["List"] = pb.ListPodResourcesResponse(
        pod_resources=[pb.PodResources.FromString(other.SerializeToString() + newer)]
    )
    assert exporter.pods()[0].SerializeToString() == other.SerializeToString() + newer
    kubelet.answers["GetAllocatableResources"] = b"\x10\x01" + newer
    assert exporter.raw("GetAllocatableResources") == b"\x10\x01" + newer


@pytest.mark.parametrize(
    ("listed_devices", "own", "expected"),
    [
        # The scheduler's card replaces the plugin's, under the plugin's resource name.
        ([device("example.com/card", "GPU-0", 0)], ("GPU-1", "GPU-2"), [
            device("example.com/card", "GPU-1", 1), device("example.com/card", "GPU-2", 1)]),
        ([device(GPU, "GPU-0"), device(GPU, "GPU-3")], ("GPU-1",), [device(GPU, "GPU-1", 1)]),
        ([device(GPU, "GPU-0::1")], ("GPU-1",), [device(GPU, "GPU-1", 1)]),
        # If the kubelet assigned none, under the name that exporters use.
        ([], ("GPU-1",), [device(GPU, "GPU-1", 1)]),
        ([device(NIC, "n0", 0)], ("GPU-1",), [device(NIC, "n0", 0), device(GPU, "GPU-1", 1)]),
        ([device(GPU, "GPU-0")], (), []),
        ([device("rdma/x", "0000:17:00.0")], (), [device("rdma/x", "0000:17:00.0")]),
    ],
)  # fmt: skip
def test_devices_are_replaced_by_the_containers_own(
    exporter: Exporter,
    kubelet: FakeKubelet,
    listed_devices: list[pb.ContainerDevices],
    own: tuple[str, ...],
    expected: list[pb.ContainerDevices],
) -> None:
    exporter.set_corrections(main=gpus(*own))
    kubelet.set_pods(
        listed(container(devices=listed_devices), container("side", devices=listed_devices))
    )
    main, side = exporter.pods()[0].containers
    assert list(main.devices) == expected
    assert list(side.devices) == listed_devices, "only main is corrected"


def test_cpus_are_replaced_by_the_containers_own(exporter: Exporter, kubelet: FakeKubelet) -> None:
    exporter.set_corrections(
        own=ContainerCorrection(CpuSet([5, 4])),
        pool=ContainerCorrection(EMPTY),
        kubelets=ContainerCorrection(),
    )
    names = ("own", "pool", "kubelets")
    blocks = [memory("memory", 7, 0)]
    kubelet.set_pods(listed(*(container(name, cpu_ids=[1], memory=blocks) for name in names)))
    (pod,) = exporter.pods()
    assert [list(each.cpu_ids) for each in pod.containers] == [[4, 5], [], [1]]
    assert all(list(each.memory) == blocks for each in pod.containers)


def test_one_pod_is_corrected_too(exporter: Exporter, kubelet: FakeKubelet) -> None:
    exporter.set_corrections(main=gpus("GPU-1"))
    kubelet.answers["Get"] = pb.GetPodResourcesResponse(pod_resources=listed(container()))
    request = pb.GetPodResourcesRequest(pod_name="p", pod_namespace="ns").SerializeToString()
    reply = pb.GetPodResourcesResponse.FromString(exporter.raw("Get", request))
    assert list(reply.pod_resources.containers[0].devices) == [device(GPU, "GPU-1", 1)]
    assert kubelet.calls == [("Get", request)]


@pytest.mark.parametrize(
    "status",
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"),
        (grpc.StatusCode.UNKNOWN, "pod p in namespace ns not found"),
    ],
)
def test_the_kubelets_errors_are_passed_on(
    exporter: Exporter, kubelet: FakeKubelet, status: tuple[grpc.StatusCode, str]
) -> None:
    kubelet.answers["Get"] = status
    with pytest.raises(grpc.RpcError) as failure:
        exporter.raw("Get")
    assert (failure.value.code(), failure.value.details()) == status
    kubelet.answers["List"] = b"\xff"
    with pytest.raises(grpc.RpcError, match="the kubelet's reply is not a List"):
        exporter.raw("List")
    with pytest.raises(grpc.RpcError) as failure:
        exporter.raw("GetAllocatableResources")
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_before_the_first_pass_calls_are_unavailable(
    exporter: Exporter, kubelet: FakeKubelet
) -> None:
    kubelet.set_pods(listed(container()))
    exporter.known = None
    with pytest.raises(grpc.RpcError) as failure:
        exporter.pods()
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert kubelet.calls == []


def test_without_a_kubelet_calls_are_unavailable(exporter: Exporter) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        exporter.pods()
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
