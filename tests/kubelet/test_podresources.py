"""The PodResources client against a fake kubelet, a real grpcio server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from agent.kubelet import podresources
from agent.kubelet.podresources import (
    MAX_REPLY_BYTES,
    KubeletDownError,
    MalformedPodResourcesError,
    NotServedError,
    PodResourcesClient,
    PodResourcesError,
    RateLimitError,
)
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pod_resources import (
    Allocatable,
    ClaimedDevice,
    ContainerResources,
    MemoryBlock,
    PluginDevice,
    PodResources,
    ResourceClaim,
)
from agent.proto import podresources_pb2 as pb
from tests.kubelet.fake_kubelet import FakeKubelet, device, memory, serving

GI = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
def kubelet(path: Path) -> Iterator[FakeKubelet]:
    fake = FakeKubelet()
    with serving(path, fake):
        yield fake


@pytest.fixture
def client(path: Path) -> Iterator[PodResourcesClient]:
    client = PodResourcesClient(str(path), 5.0)
    yield client
    client.close()


def with_container(**fields: object) -> pb.PodResources:
    container = pb.ContainerResources(name="c", **fields)
    return pb.PodResources(namespace="ns", name="p", containers=[container])


def test_all_fields_of_a_pod(client: PodResourcesClient, kubelet: FakeKubelet) -> None:
    claimed = pb.ClaimResource(
        cdi_devices=[pb.CDIDevice(name="vendor.example/gpu=g0")],
        driver_name="gpu.example",
        pool_name="node-a",
        device_name="gpu-0",
        share_id="s1",
    )
    claim = pb.DynamicResource(
        claim_namespace="ns", claim_name="one-gpu", claim_resources=[claimed]
    )
    message = with_container(
        cpu_ids=[5, 2],
        memory=[memory("memory", 3 * GI, 1, 0), memory("hugepages-2Mi", GI, 0)],
        devices=[device("vendor.example/nic", "n1"), device("vendor.example/nic", "n0", 1)],
        dynamic_resources=[claim],
    )
    message.cpu_ids.extend([2, 3, 5])
    message.memory.append(memory("memory", 4 * GI, 0, 1))
    kubelet.set_pods(message, pb.PodResources(namespace="ns", name="idle"))
    idle, pod = client.pods()
    container = ContainerResources(
        "c",
        CpuSet([2, 5]),
        (MemoryBlock("hugepages-2Mi", GI, (0,)), MemoryBlock("memory", 3 * GI, (0, 1))),
        (PluginDevice("vendor.example/nic", "n0", (1,)), PluginDevice("vendor.example/nic", "n1")),
        (
            ResourceClaim(
                "ns",
                "one-gpu",
                (
                    ClaimedDevice(
                        "gpu.example", "node-a", "gpu-0", ("vendor.example/gpu=g0",), "s1"
                    ),
                ),
            ),
        ),
    )
    pod_memory = (MemoryBlock("memory", 4 * GI, (0, 1)),)
    assert pod == PodResources("ns", "p", (container,), CpuSet([2, 3, 5]), pod_memory)
    assert idle == PodResources("ns", "idle")


def test_pods_and_drivers_are_sorted(client: PodResourcesClient, kubelet: FakeKubelet) -> None:
    """The kubelet iterates over maps of Go, in another order each time."""
    one, two = (pb.ClaimResource(driver_name=name) for name in ("one", "two"))

    def read_pods(drivers: list[pb.ClaimResource], names: str) -> tuple[PodResources, ...]:
        claim = pb.DynamicResource(claim_name="k", claim_resources=drivers)
        container = pb.ContainerResources(name="c", dynamic_resources=[claim])
        kubelet.set_pods(
            *(pb.PodResources(namespace="ns", name=name, containers=[container]) for name in names)
        )
        return client.pods()

    assert read_pods([one, two], "ab") == read_pods([two, one], "ba")


def test_allocatable(client: PodResourcesClient, kubelet: FakeKubelet) -> None:
    kubelet.answers["GetAllocatableResources"] = pb.AllocatableResourcesResponse(
        devices=[device("vendor.example/nic", "n0", 1)],
        cpu_ids=[3, 1],
        memory=[memory("memory", GI, 0)],
    )
    assert client.allocatable() == Allocatable(
        CpuSet([1, 3]),
        (MemoryBlock("memory", GI, (0,)),),
        (PluginDevice("vendor.example/nic", "n0", (1,)),),
    )


def test_one_pod_by_name(client: PodResourcesClient, kubelet: FakeKubelet) -> None:
    kubelet.answers["Get"] = pb.GetPodResourcesResponse(pod_resources=with_container(cpu_ids=[1]))
    assert client.pod("ns", "p") == PodResources("ns", "p", (ContainerResources("c", CpuSet([1])),))
    _, request = kubelet.calls[0]
    assert pb.GetPodResourcesRequest.FromString(request) == pb.GetPodResourcesRequest(
        pod_namespace="ns", pod_name="p"
    )
    with pytest.raises(MalformedPodResourcesError, match="pod ns/other: the answer is of ns/p"):
        client.pod("ns", "other")


def test_device_near_two_numa_nodes_is_one_device() -> None:
    """The kubelet has an entry for each NUMA node (1.36, cm/container_manager.go)."""
    message = with_container(devices=[device("v/x", "d", 1), device("v/x", "d", 0)])
    assert podresources.pod(message).containers[0].devices == (PluginDevice("v/x", "d", (0, 1)),)


def test_device_with_numa_node_minus_one_has_none() -> None:
    """The kernel reports -1 for a device without a NUMA node, and plugins pass it on."""
    message = with_container(devices=[device("v/x", "d", -1)])
    assert podresources.pod(message).containers[0].devices == (PluginDevice("v/x", "d"),)


@pytest.mark.parametrize(
    ("listed", "own"),
    [
        ([["a"], ["a", "b"], ["a", "b", "c", "d"]], [("a",), ("b",), ("c", "d")]),
        ([["a"], ["b"]], [("a",), ("b",)]),
        ([["a"], ["a"]], [("a",), ("a",)]),
        ([["a"], ["b", "a"]], [("a",), ("b", "a")]),
        ([[], ["a"]], [(), ("a",)]),
    ],
)
def test_repeated_cdi_names_belong_to_the_previous_device(
    listed: list[list[str]], own: list[tuple[str, ...]]
) -> None:
    """1.36 collects them over the devices of a driver (cm/container_manager_linux.go)."""
    claim = pb.DynamicResource(
        claim_name="c",
        claim_resources=[
            pb.ClaimResource(
                driver_name="d",
                device_name=str(index),
                cdi_devices=[pb.CDIDevice(name=n) for n in names],
            )
            for index, names in enumerate(listed)
        ],
    )
    (value,) = podresources.pod(with_container(dynamic_resources=[claim])).containers[0].claims
    assert [each.cdi for each in value.devices] == own


def test_cdi_names_of_two_drivers_are_separate() -> None:
    shared = pb.CDIDevice(name="a")
    one = pb.ClaimResource(driver_name="one", cdi_devices=[shared])
    two = pb.ClaimResource(driver_name="two", cdi_devices=[shared, pb.CDIDevice(name="b")])
    claim = pb.DynamicResource(claim_name="c", claim_resources=[one, two])
    (value,) = podresources.pod(with_container(dynamic_resources=[claim])).containers[0].claims
    assert [each.cdi for each in value.devices] == [("a",), ("a", "b")]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (pb.PodResources(name="p"), "pod ''/'p'"),
        (pb.PodResources(namespace="ns"), "pod 'ns'/''"),
        (
            pb.PodResources(namespace="ns", name="p", containers=[pb.ContainerResources()]),
            "pod ns/p: a container has no name",
        ),
        (with_container(cpu_ids=[0, -1]), "pod ns/p, container c: cpu_ids: -1 is not a CPU"),
        (with_container(cpu_ids=[1 << 62]), f"container c: cpu_ids: {1 << 62} is not a CPU"),
        (with_container(cpu_ids=[1] * 70_000), "container c: cpu_ids: 70000 of them"),
        (pb.PodResources(namespace="ns", name="p", cpu_ids=[-3]), "pod ns/p: cpu_ids: -3"),
        (with_container(memory=[memory("", 1, 0)]), "container c: memory: a block has no"),
        (
            with_container(memory=[memory("memory", 1 << 63, 0)]),
            f"container c: memory memory: size: {1 << 63} bytes",
        ),
        (
            with_container(memory=[memory("memory", 1, -1)]),
            "container c: memory memory: topology: -1 is not a NUMA node",
        ),
        (with_container(devices=[device("v/x", "d", -2)]), "devices v/x: topology: -2"),
        (with_container(devices=[device("v/x", "d", 1024)]), "devices v/x: topology: 1024"),
        (with_container(devices=[device("v/x", "")]), "devices v/x: resource_name or a device id"),
        (with_container(devices=[device("", "d")]), "container c: devices : resource_name"),
        (with_container(dynamic_resources=[pb.DynamicResource()]), "has no claim_name"),
        (
            with_container(
                dynamic_resources=[
                    pb.DynamicResource(claim_name="k", claim_resources=[pb.ClaimResource()])
                ]
            ),
            "claim_resources of k: driver_name is empty",
        ),
    ],
)
def test_impossible_values_are_refused_with_their_pod(
    client: PodResourcesClient,
    kubelet: FakeKubelet,
    path: Path,
    message: pb.PodResources,
    named: str,
) -> None:
    kubelet.set_pods(pb.PodResources(namespace="ns", name="good"), message)
    with pytest.raises(MalformedPodResourcesError) as error:
        client.pods()
    assert str(error.value).startswith(f"{path}: List: ")
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"), RateLimitError),
        ((grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled"), NotServedError),
        ((grpc.StatusCode.UNAVAILABLE, "not yet"), KubeletDownError),
        ((grpc.StatusCode.INTERNAL, "failed"), PodResourcesError),
        (b"\xff\xff", MalformedPodResourcesError),
        (b"\x0a\x02\x0a\x01", MalformedPodResourcesError),
        (None, NotServedError),
    ],
)
def test_each_failure_has_its_error(
    client: PodResourcesClient,
    kubelet: FakeKubelet,
    path: Path,
    answer: tuple[grpc.StatusCode, str] | bytes | None,
    kind: type[PodResourcesError],
) -> None:
    methods = {
        "List": client.pods,
        "GetAllocatableResources": client.allocatable,
        "Get": lambda: client.pod("ns", "p"),
    }
    for method, call in methods.items():
        if answer is not None:
            kubelet.answers[method] = answer
        with pytest.raises(PodResourcesError) as error:
            call()
        assert type(error.value) is kind
        assert (error.value.socket, error.value.method) == (str(path), method)
        assert str(error.value).startswith(f"{path}: {method}: ")


def test_a_pod_that_the_kubelet_does_not_know(
    client: PodResourcesClient, kubelet: FakeKubelet
) -> None:
    """1.36 reports it as UNKNOWN (podresources/server_v1.go)."""
    text = "pod p in namespace ns not found"
    for code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND):
        kubelet.answers["Get"] = (code, text)
        assert client.pod("ns", "p") is None
    kubelet.answers["Get"] = pb.GetPodResourcesResponse()
    with pytest.raises(MalformedPodResourcesError, match="pod ''/''"):
        client.pod("ns", "p")


def test_missing_socket_and_socket_without_a_listener(path: Path) -> None:
    client = PodResourcesClient(str(path), 0.05)
    with pytest.raises(KubeletDownError, match=r"kubelet\.sock: List: .*No such file"):
        client.pods()
    path.write_text("")
    with pytest.raises(KubeletDownError, match=r"kubelet\.sock: List: .*Connection refused"):
        client.pods()
    path.unlink()
    fake = FakeKubelet()
    fake.set_pods()
    fake.silent.set()
    with serving(path, fake):
        with pytest.raises(KubeletDownError, match="List: DEADLINE_EXCEEDED"):
            client.pods()
        fake.silent.clear()
        without_timeout = PodResourcesClient(str(path))
        assert without_timeout.pods() == ()
        without_timeout.close()
    client.close()


def test_reply_beyond_the_limit_is_refused_and_the_next_is_read(
    client: PodResourcesClient, kubelet: FakeKubelet
) -> None:
    large = [
        pb.PodResources(namespace="ns", name="n" * (1 << 20)) for _ in range(MAX_REPLY_BYTES >> 20)
    ]
    kubelet.set_pods(*large)
    with pytest.raises(PodResourcesError, match="larger than"):
        client.pods()
    kubelet.set_pods(*large[:-1])
    assert len(client.pods()) == len(large) - 1
