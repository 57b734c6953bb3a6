"""The devices of one node: those that its pods hold together, and an offer of free ones to a pod
(`allocate.devices` chooses them)."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Final

from agent.allocate.devices.allocation import Allocation, DeviceHintProvider, unavailable
from agent.allocate.devices.inventory import Inventory, NodeDevices, node_devices
from agent.allocate.devices.need import typed
from agent.allocate.node_allocator.assigned_pods import AssignedPod
from agent.allocate.node_allocator.part import Priced
from agent.allocate.node_allocator.properties import Imported, NodeProperties
from agent.allocate.placement.demand import CardOrder
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.steps import Steps
from agent.model.devices.device_allocation import (
    DeviceAmounts,
    VirtualFunctions,
    sum_amounts,
    sum_functions,
)
from agent.model.devices.device_object import DeviceType
from agent.model.devices.device_request import DeviceRequest
from agent.model.pod_request import PodRequest, Reads


class DeviceAllocator:
    """The devices that pods hold. Not thread-safe."""

    def __init__(self, properties: NodeProperties) -> None:
        self.properties = properties
        self._pods: dict[str, AssignedPod] = {}
        self._held: NodeDevices | None = None

    def with_properties(self, properties: NodeProperties) -> DeviceAllocator:
        """Returns a copy with the same pods for a node with these properties."""
        other = DeviceAllocator(properties)
        other._pods = dict(self._pods)
        return other

    @property
    def held(self) -> NodeDevices:
        """The devices with the amounts that pods hold. Raises ValueError if there is no Device
        object."""
        if self._held is None:
            inventory = self.properties.inventory
            if inventory is None:
                raise ValueError(f"node {self.properties.name} has no Device object")
            self._held = _held_devices(inventory, self._pods, self.properties.imported)
        return self._held

    def admits(self, pod_request: PodRequest, steps: Steps) -> Refusal | None:
        request = self._typed(pod_request)
        if isinstance(request, Refusal):
            return request
        properties = self.properties
        if properties.inventory is None:
            text = f"node {properties.name} has no Device object"
            return Refusal(Reason.NO_DEVICE_OBJECT, detail=text)
        gpu = pod_request.devices.requests.get(DeviceType.GPU) if pod_request.devices else None
        if gpu is None or not gpu.shared:
            return None
        if pod_request.isolation and pod_request.isolation != properties.isolation:
            there = properties.isolation or "none"
            text = f"requested {pod_request.isolation}, available {there}"
            return Refusal(Reason.GPU_ISOLATION, detail=f"GPU isolation provider: {text}")
        if not properties.shares_gpus:
            text = "GPUs of this model are not divided"
            return Refusal(Reason.GPU_NOT_DIVIDED, detail=text)
        return None

    def hints(
        self, pod_request: PodRequest, steps: Steps, cards: CardOrder | None = None
    ) -> DeviceHintProvider | Refusal:
        """The hints for a pod that requests devices, in the order of these `cards` or of the
        strategy."""
        request = self._typed(pod_request)
        if isinstance(request, Refusal):
            return request
        strategy = cards or self.properties.rules.strategy_of(request)
        return DeviceHintProvider(self.held, request, strategy, steps)

    def offer(
        self, pod_request: PodRequest, steps: Steps, hints: DeviceHintProvider | None = None
    ) -> Priced[Allocation] | Refusal:
        """The devices that were chosen for the `hints`, or any."""
        provider = hints or self.hints(pod_request, steps)
        if isinstance(provider, Refusal):
            return provider
        allocation = provider.found or provider.find(None)
        if isinstance(allocation, Refusal):
            return allocation
        opened = provider.opened(allocation)
        return Priced(allocation, provider.score(allocation), (opened,))

    def missing(self, pod_request: PodRequest, choice: Allocation | None, steps: Steps) -> str:
        if choice is None or pod_request.devices is None:
            return ""
        if self.properties.inventory is None:
            return "the node no longer has a Device object"
        return unavailable(self.held, pod_request.devices, choice)

    def record(self, pod: AssignedPod) -> None:
        if pod.kinds:
            self._pods[pod.uid], self._held = pod, None

    def forget(self, pod: AssignedPod) -> None:
        if self._pods.pop(pod.uid, None) is not None:
            self._held = None

    def without(self, pods: Collection[AssignedPod]) -> DeviceAllocator:
        other = copy.copy(self)
        other._pods = dict(self._pods)
        for pod in pods:
            other.forget(pod)
        return other

    def state(self, reads: Reads) -> object:
        return self.held.state() if reads is Reads.DEVICES else None

    def _typed(self, pod_request: PodRequest) -> DeviceRequest | Refusal:
        return typed(pod_request.devices or _NONE, self.properties.inventory or _NO_INVENTORY)


_NONE: Final = DeviceRequest({})
_NO_INVENTORY: Final = Inventory({})


def _held_devices(
    inventory: Inventory, pods: Mapping[str, AssignedPod], imported: Mapping[str, Imported]
) -> NodeDevices:
    """`pods` and `imported` are by uid. If a scheduler allocated a device to a pod, only the
    allocation counts; without an amount the pod has the whole device, as on its node
    (`allocate.visibility`)."""
    devices, functions = [], []
    own: dict[str, DeviceAmounts] = {}
    for uid, held in pods.items():
        if held.devices or held.functions:
            by_device, of_pod = numbered(held, inventory)
            own[uid] = {
                at: each if any(each.values()) or at in of_pod else _all_of(inventory, at)
                for at, each in by_device.items()
            }
            devices.append(own[uid])
            functions.append(of_pod)
    for uid, each in imported.items():
        given = own.get(uid, {})
        devices.append({at: amounts for at, amounts in each.devices.items() if at not in given})
        functions.append(each.functions)
    return node_devices(inventory, sum_amounts(devices), sum_functions(functions))


def _all_of(inventory: Inventory, at: tuple[str, int]) -> dict[str, int]:
    kind, minor = at
    fleet = inventory.fleets.get(kind)
    return fleet.devices[minor].resources if fleet and minor in fleet.devices else {}


def numbered(
    held: AssignedPod, inventory: Inventory | None
) -> tuple[DeviceAmounts, VirtualFunctions]:
    """The pod's devices with their current minors: GPU drivers assign minors anew at each
    start."""
    moved = {}
    for (kind, minor), uuid in held.ids.items():
        fleet = inventory.fleets.get(kind) if inventory else None
        if fleet is None or (minor in fleet.devices and fleet.devices[minor].uuid == uuid):
            continue
        now = next((at for at, each in fleet.devices.items() if each.uuid == uuid), minor)
        moved[kind, minor] = kind, now
    if not moved:
        return held.devices, held.functions
    return (
        sum_amounts({moved.get(at, at): amounts} for at, amounts in held.devices.items()),
        sum_functions({moved.get(at, at): buses} for at, buses in held.functions.items()),
    )
