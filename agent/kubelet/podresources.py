"""The kubelet's PodResources API (v1, ../../protos/podresources.proto), which it serves on a unix
socket of its node.

The client returns the answers as values; the error for an impossible value names the field. The
corrected lister forwards the kubelet's answers to exporters, and replaces the CPUs and devices that
the kubelet assigned by those that containers really have. All other fields stay, also those that
only newer kubelets have.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from agent.allocate.device_holders.names import Keys, meaning
from agent.model.cpu.cpuset import MAX_ID, CpuSet
from agent.model.devices.device_object import RESOURCE_OF
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.model.pod.pod_resources import (
    Allocatable,
    ClaimedDevice,
    ContainerCorrection,
    ContainerResources,
    CorrectedDevice,
    Corrections,
    MemoryBlock,
    PluginDevice,
    PodResources,
    ResourceClaim,
)
from agent.model.verdict import Code
from agent.proto import DecodeError, Message
from agent.proto import podresources_pb2 as pb
from agent.rpc.channel import Channel
from agent.rpc.grpc import NO_ANSWER, RpcError

MAX_NODE: Final = 1_023
"""The kernel's highest NUMA node."""
MAX_SIZE_BYTES: Final = (1 << 63) - 1
"""The largest amount that Kubernetes can write."""

_NO_NODE: Final = -1
"""The kernel's number for no NUMA node (Documentation/ABI/testing/sysfs-bus-pci, numa_node), which
some device plugins pass on."""


MAX_REPLY_BYTES: Final = 16 << 20
"""The limit of other clients too (resource-topology-exporter: pkg/podres/client.go,
DefaultMaxMsgSize)."""

SERVICE: Final = "v1.PodResourcesLister"


def socket_path(kubelet_dir: str) -> str:
    """The kubelet's socket (kubelet: pkg/kubelet/kubelet_getters.go, getPodResourcesDir)."""
    return os.path.join(kubelet_dir, "pod-resources", "kubelet.sock")


Reply = TypeVar("Reply", bound=Message)
Value = TypeVar("Value")


class PodResourcesError(Exception):
    """A call without a valid answer; the message names socket and method."""

    def __init__(self, socket: str, method: str, reason: str) -> None:
        super().__init__(f"{socket}: {method}: {reason}")
        self.socket = socket
        self.method = method
        self.reason = reason


class KubeletDownError(PodResourcesError):
    """The kubelet does not run, is starting, or does not answer in time."""


class NotServedError(PodResourcesError):
    """This kubelet does not have the method, or it is off by a feature gate."""


class RateLimitError(PodResourcesError):
    """All clients of the kubelet together exceed its rate limit."""


class MalformedPodResourcesError(PodResourcesError):
    """The answer is invalid; the message names pod, container and field too."""


class PodResourcesClient:
    """Safe for threads; every method raises PodResourcesError."""

    def __init__(self, socket_path: str, timeout_seconds: float = 10.0) -> None:
        self._path = socket_path
        self._timeout_seconds = timeout_seconds
        self._channel = Channel(socket_path, MAX_REPLY_BYTES)

    def pods(self) -> tuple[PodResources, ...]:
        """The kubelet's pods by name, also those without resources; before 1.34 also ended ones."""
        request, kind = pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse
        return self._call("List", request, kind, pods)

    def allocatable(self) -> Allocatable:
        """The resources that the kubelet can allocate."""
        request, kind = pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
        return self._call("GetAllocatableResources", request, kind, allocatable)

    def pod(self, namespace: str, name: str) -> PodResources | None:
        """One pod; None where the kubelet has none of that name."""
        request = pb.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)

        def read(reply: pb.GetPodResourcesResponse) -> PodResources:
            found = pod(reply.pod_resources)
            if found.key != (namespace, name):
                text = f"the answer is of {found.namespace}/{found.name}"
                raise FieldError(f"pod {namespace}/{name}: {text}")
            return found

        try:
            return self._call("Get", request, pb.GetPodResourcesResponse, read)
        except _NotFoundError:
            return None

    def close(self) -> None:
        """Closes the connection; a later call opens it again."""
        self._channel.close()

    def _call(
        self, method: str, request: Message, kind: type[Reply], read: Callable[[Reply], Value]
    ) -> Value:
        path = f"/{SERVICE}/{method}"
        try:
            raw = self._channel.call(path, request.SerializeToString(), self._timeout_seconds)
            return read(kind.FromString(raw))
        except RpcError as error:
            raise _error_of(error)(self._path, method, str(error)) from None
        except DecodeError as error:
            text = f"the reply is not a {kind.__name__}: {error}"
            raise MalformedPodResourcesError(self._path, method, text) from None
        except FieldError as error:
            raise MalformedPodResourcesError(self._path, method, str(error)) from None


class _NotFoundError(PodResourcesError):
    pass


def _error_of(error: RpcError) -> type[PodResourcesError]:
    """The error of the client for a status. If a pod does not exist, or a feature gate is off, the
    kubelet answers UNKNOWN, and only the message has the reason."""
    if error.code in NO_ANSWER:
        return KubeletDownError
    if error.code == Code.UNIMPLEMENTED:
        return NotServedError
    if error.code == Code.RESOURCE_EXHAUSTED and "rate limit" in error.message:
        return RateLimitError
    if error.code == Code.UNKNOWN and error.message.endswith("disabled"):
        return NotServedError
    if error.code in (Code.UNKNOWN, Code.NOT_FOUND) and error.message.endswith("not found"):
        return _NotFoundError
    return PodResourcesError


class FieldError(ValueError):
    """The message names pod, container and field."""


def pods(message: pb.ListPodResourcesResponse) -> tuple[PodResources, ...]:
    """Sorted by name: the kubelet's order changes each time. Raises FieldError."""
    return tuple(sorted(map(pod, message.pod_resources), key=lambda each: each.key))


def pod(message: pb.PodResources) -> PodResources:
    """Raises FieldError."""
    if not message.name or not message.namespace:
        raise FieldError(f"pod {message.namespace!r}/{message.name!r}: has no name or namespace")
    title = f"pod {message.namespace}/{message.name}"
    return PodResources(
        message.namespace,
        message.name,
        tuple(_container(each, title) for each in message.containers),
        _cpus(message.cpu_ids, title),
        _memory(message.memory, title),
    )


def allocatable(message: pb.AllocatableResourcesResponse) -> Allocatable:
    """Raises FieldError."""
    return Allocatable(
        _cpus(message.cpu_ids, "node"),
        _memory(message.memory, "node"),
        _devices(message.devices, "node"),
    )


def _container(message: pb.ContainerResources, title: str) -> ContainerResources:
    if not message.name:
        raise FieldError(f"{title}: a container has no name")
    title = f"{title}, container {message.name}"
    return ContainerResources(
        message.name,
        _cpus(message.cpu_ids, title),
        _memory(message.memory, title),
        _devices(message.devices, title),
        tuple(_claim(each, title) for each in message.dynamic_resources),
    )


def _cpus(ids: Sequence[int], title: str) -> CpuSet:
    if len(ids) > MAX_ID + 1:
        raise FieldError(f"{title}: cpu_ids: {len(ids)} of them")
    for each in ids:
        if not 0 <= each <= MAX_ID:
            raise FieldError(f"{title}: cpu_ids: {each} is not a CPU")
    return CpuSet(ids)


def _memory(messages: Iterable[pb.ContainerMemory], title: str) -> tuple[MemoryBlock, ...]:
    blocks = []
    for each in messages:
        if not each.memory_type:
            raise FieldError(f"{title}: memory: a block has no memory_type")
        field = f"{title}: memory {each.memory_type}"
        if each.size > MAX_SIZE_BYTES:
            raise FieldError(f"{field}: size: {each.size} bytes")
        nodes = tuple(sorted({_node(node.ID, field) for node in each.topology.nodes}))
        blocks.append(MemoryBlock(each.memory_type, each.size, nodes))
    return tuple(sorted(blocks, key=lambda block: (block.kind, block.nodes, block.size_bytes)))


def _devices(messages: Iterable[pb.ContainerDevices], title: str) -> tuple[PluginDevice, ...]:
    """The kubelet writes a device that is near to several NUMA nodes once for each of them."""
    nodes: dict[tuple[str, str], set[int]] = {}
    for each in messages:
        field = f"{title}: devices {each.resource_name}"
        if not each.resource_name or not all(each.device_ids):
            raise FieldError(f"{field}: resource_name or a device id is empty")
        near = {_node(node.ID, field) for node in each.topology.nodes if node.ID != _NO_NODE}
        for device in each.device_ids:
            nodes.setdefault((each.resource_name, device), set()).update(near)
    return tuple(
        PluginDevice(resource, device, tuple(sorted(near)))
        for (resource, device), near in sorted(nodes.items())
    )


def _claim(message: pb.DynamicResource, title: str) -> ResourceClaim:
    """Up to 1.36 at least, the kubelet lists for each device of a driver also the CDI names of the
    devices before it (cm/container_manager_linux.go, GetDynamicResources); they are removed. The
    order of the drivers changes each time."""
    if not message.claim_name:
        raise FieldError(f"{title}: dynamic_resources: a claim has no claim_name")
    devices: list[ClaimedDevice] = []
    driver, before = "", list[str]()
    for each in message.claim_resources:
        if not each.driver_name:
            text = f"claim_resources of {message.claim_name}: driver_name is empty"
            raise FieldError(f"{title}: dynamic_resources: {text}")
        names = [device.name for device in each.cdi_devices]
        again = len(before) if each.driver_name == driver and len(names) > len(before) else 0
        own = names[again:] if names[:again] == before[:again] else names
        driver, before = each.driver_name, names
        devices.append(
            ClaimedDevice(
                each.driver_name,
                each.pool_name,
                each.device_name,
                tuple(own),
                each.share_id if each.HasField("share_id") else None,
            )
        )
    devices.sort(key=lambda each: (each.driver, each.pool, each.device, each.share or ""))
    return ResourceClaim(message.claim_namespace, message.claim_name, tuple(devices))


def _node(node: int, field: str) -> int:
    if not 0 <= node <= MAX_NODE:
        raise FieldError(f"{field}: topology: {node} is not a NUMA node")
    return node


METHODS: Final = ("List", "GetAllocatableResources", "Get")
ANSWER_SECONDS: Final = 10.0
RESOURCES: Final = {"gpu": "nvidia.com/gpu", **RESOURCE_OF}
"""The resource names that exporters know, for devices that no device plugin allocated."""

Known = tuple[Corrections, Keys]
"""The corrections, and the devices by each of their names."""


class CorrectedLister:
    """Answers each request with the kubelet's corrected answer; its errors and rate limits are
    passed on. Safe for threads.

    `known`: returns the present corrections, None before the first pass."""

    def __init__(self, kubelet_socket: str, known: Callable[[], Known | None]) -> None:
        self._channel = Channel(kubelet_socket, MAX_REPLY_BYTES)
        self._known = known

    def answer(self, method: str, request: bytes) -> bytes:
        """The reply's message. Raises RpcError."""
        known = self._known()
        if known is None:
            raise RpcError(Code.UNAVAILABLE, "the agent has not completed its first pass yet")
        reply = self._channel.call(f"/{SERVICE}/{method}", request, ANSWER_SECONDS)
        return corrected(method, reply, *known)

    def close(self) -> None:
        """Closes the connection after the call in progress."""
        self._channel.close()


def corrected(method: str, reply: bytes, corrections: Corrections, keys: Keys) -> bytes:
    """The kubelet's reply with the corrections. Raises RpcError if the reply can't be read."""
    if method == "GetAllocatableResources":
        return reply
    kind = pb.ListPodResourcesResponse if method == "List" else pb.GetPodResourcesResponse
    try:
        message = kind.FromString(reply)
    except DecodeError as error:
        text = f"{method}: the kubelet's reply is not a {kind.__name__}: {error}"
        raise RpcError(Code.INTERNAL, text) from None
    pods = (
        message.pod_resources
        if isinstance(message, pb.ListPodResourcesResponse)
        else [message.pod_resources]
    )
    for pod in pods:
        correction = corrections.get((pod.namespace, pod.name))
        if correction is not None:
            for container in pod.containers:
                _correct(container, correction.of(container.name), keys)
    return message.SerializeToString()


def _correct(container: pb.ContainerResources, correction: ContainerCorrection, keys: Keys) -> None:
    if correction.cpus is not None:
        container.cpu_ids[:] = sorted(correction.cpus)
    for kind, own in correction.devices.items():
        resource = ""
        kept = []
        for entry in container.devices:
            if kind in _types(entry, keys):
                resource = resource or entry.resource_name
            else:
                kept.append(entry)
        entries = kept + [_entry(resource or RESOURCES.get(kind, kind), each) for each in own]
        del container.devices[:]
        container.devices.extend(entries)


def _types(entry: pb.ContainerDevices, keys: Keys) -> set[str]:
    reported = ReportedDevices(
        "", "", entry.resource_name, tuple(entry.device_ids), HoldingSource.CHECKPOINT
    )
    return {each.type for each in meaning(reported, keys).holdings}


def _entry(resource: str, device: CorrectedDevice) -> pb.ContainerDevices:
    """The device as the kubelet writes it: without topology if it has no NUMA node."""
    nodes = [pb.NUMANode(ID=node) for node in device.nodes]
    topology = pb.TopologyInfo(nodes=nodes) if nodes else None
    return pb.ContainerDevices(resource_name=resource, device_ids=[device.id], topology=topology)
