"""Answers of the PodResources API with what containers really have in the place of what the kubelet
thinks. All that nothing is known of passes as it came, fields of newer kubelets too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from google.protobuf.message import DecodeError

from agent.allocate.device_holders.names import Keys, meaning
from agent.kubelet.podresources import MAX_REPLY_BYTES, SERVICE
from agent.model.holding import DeviceGrant, HoldingSource
from agent.model.podresources import ContainerCorrection, Corrections, OwnDevice
from agent.model.verdict import Code
from agent.proto import podresources_pb2 as pb
from agent.rpc.channel import Channel
from agent.rpc.grpc import RpcError

METHODS: Final = ("List", "GetAllocatableResources", "Get")
ANSWER_SECONDS: Final = 10.0
RESOURCES: Final = {
    "gpu": "nvidia.com/gpu",
    "rdma": "koordinator.sh/rdma",
    "fpga": "koordinator.sh/fpga",
}
"""What devices are listed as that no plugin of the kubelet gave any of: what exporters know."""

Known = tuple[Corrections, Keys]
"""`Keys` has the types of the devices that the kubelet lists."""


class CorrectedLister:
    """Asks the kubelet at each call, so that its errors and limits are its own. `known`: what is
    known now, None before anything is. Safe for threads."""

    def __init__(self, kubelet_socket: str, known: Callable[[], Known | None]) -> None:
        self._channel = Channel(kubelet_socket, MAX_REPLY_BYTES)
        self._known = known

    def answer(self, method: str, request: bytes) -> bytes:
        """The reply's message. Raises RpcError."""
        known = self._known()
        if known is None:
            raise RpcError(Code.UNAVAILABLE, "the agent did not complete its first pass yet")
        reply = self._channel.call(f"/{SERVICE}/{method}", request, ANSWER_SECONDS)
        return corrected(method, reply, *known)

    def close(self) -> None:
        """After the call under way."""
        self._channel.close()


def corrected(method: str, reply: bytes, corrections: Corrections, keys: Keys) -> bytes:
    """Raises RpcError where the kubelet's reply can't be read."""
    if method == "GetAllocatableResources":
        return reply
    kind = pb.ListPodResourcesResponse if method == "List" else pb.GetPodResourcesResponse
    try:
        message = kind.FromString(reply)
    except DecodeError as error:
        text = f"{method}: the kubelet's reply is no {kind.__name__}: {error}"
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
    grant = DeviceGrant(
        "", "", entry.resource_name, tuple(entry.device_ids), HoldingSource.CHECKPOINT
    )
    return {each.type for each in meaning(grant, keys).holdings}


def _entry(resource: str, device: OwnDevice) -> pb.ContainerDevices:
    """As the kubelet writes it: without topology where a device is near to no NUMA node."""
    nodes = [pb.NUMANode(ID=node) for node in device.nodes]
    topology = pb.TopologyInfo(nodes=nodes) if nodes else None
    return pb.ContainerDevices(resource_name=resource, device_ids=[device.id], topology=topology)
