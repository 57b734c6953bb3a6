"""How near to its devices a pod would run on a node, whose kubelet gives it devices of plugins.

**Which devices.** The topology manager, unless its policy is none, lets the device manager take the
devices from the set of as few NUMA nodes as an empty machine needs, the one with the lowest ids if
there are several, and from more NUMA nodes if no such set has enough (kubelet: pkg/kubelet/cm,
devicemanager/topology_hints.go and topologymanager/policy.go). Under the policy none the plugin
prefers devices (GetPreferredAllocation): a plugin that prefers devices next to each other, as
NVIDIA's does, is expected to take them from as few NUMA nodes too, but from any of these sets.

**Near.** A container is near if its devices come from as few NUMA nodes as on an empty machine, and
these have the CPUs: CPUs of its own under a static kubelet that aligns both; otherwise room for its
request beside those of the containers that already run there because of their devices. This mirrors
what the agent decides when the container starts (`allocate.locality`).

**What remains.** Free devices that no pod of a size could get near are broken off. The sizes are
the powers of two up to all devices of the node. Of two nodes where the pod would be near, the one
is better where the number of such devices, over all sizes, rises less, or falls more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.allocate.locality import Load
from agent.allocate.nrt.filter import parts_of
from agent.allocate.nrt.node import FAR, ZonedNode
from agent.allocate.numa.hint import fewest_nodes, ids, of_nodes, subsets
from agent.allocate.refusal import Reason, Refusal
from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import NumaPolicy
from agent.model.pod.numa_request import NumaRequest, PartKind, PodPart, foreign

NEAR: Final = 50
"""The least score of a pod that would be near."""


class LocalityRating(msgspec.Struct, frozen=True):
    """How near a pod would run to its devices."""

    score: int
    """NEAR to 100 if it would be near, else less."""
    order: tuple[int, ...] = ()
    """Smaller is better among equal scores."""
    refusal: Refusal | None = None
    """Why it would not be near; None if it would."""


def has_plugin_devices(node: ZonedNode, pod: NumaRequest) -> bool:
    """Whether the pod requests devices of plugins that the zones of the node report."""
    return any(_devices(node, part) for part in pod.parts)


def near_milli_of(pod: NumaRequest, *, static: bool) -> int:
    """The CPU request in milli-CPU of the containers that request devices and share CPUs. `static`:
    the kubelet assigns CPUs."""
    return sum(
        _shared_milli(pod, part, static)
        for part in pod.parts
        if part.kind is not PartKind.INIT and any(foreign(name) for name in part.taken)
    )


def rate(
    node: ZonedNode, empty: ZonedNode, pod: NumaRequest, steps: Steps = UNCOUNTED
) -> LocalityRating:
    """Rates a node that passed the filter, for a pod with devices of plugins.

    `empty`: the node without any pod.

    Raises TooComplexError."""
    _count_sizes(node, pod, steps)
    parts = pod.parts if node.policy is NumaPolicy.NONE else parts_of(node, pod)
    available = {name: dict(amounts) for name, amounts in node.available.items()}
    before = _unusable(node, pod, available)
    room, static = _Room(node, empty), "cpu" in node.hinted
    more_nodes, refusal = 0, None
    for part in parts:
        devices = _devices(node, part)
        if not devices:
            continue
        choice = _choose(node, available, part, devices, steps)
        more_nodes += choice.more_nodes
        cpu_milli = _shared_milli(pod, part, static)
        refusal = refusal or choice.refusal or room.refusal(part, choice, cpu_milli, steps)
        if part.kind is not PartKind.INIT:
            room.take(choice, cpu_milli)
            for name, amount in choice.requested.items():
                _take(available[name], choice.mask, amount)
    return _rated(node, pod, more_nodes, _unusable(node, pod, available) - before, refusal)


def far_from_devices(
    node: ZonedNode,
    empty: ZonedNode,
    pod: NumaRequest,
    devices: Mapping[str, tuple[int, int]],
    steps: Steps = UNCOUNTED,
) -> Refusal | None:
    """Why a pod would run far from devices that a scheduler allocates to it; None if it would be
    near.

    `devices`: by type, the mask of their NUMA nodes, and how many NUMA nodes so many devices need
        on an empty machine.

    Raises TooComplexError."""
    mask, fewest = 0, 0
    for kind, (of_kind, needed) in devices.items():
        mask, fewest = mask | of_kind, max(fewest, needed)
        if of_kind.bit_count() > needed:
            return Refusal(Reason.DEVICES_APART, kind, nodes=ids(of_kind))
    if mask.bit_count() > fewest:
        return Refusal(Reason.DEVICES_APART, " and ".join(devices), nodes=ids(mask))
    static = "cpu" in node.hinted
    if static and pod.whole.exclusive_milli:
        return _unaligned(pod.whole) if node.policy is NumaPolicy.NONE else None
    choice, cpu_milli = _Choice({}, mask, [mask]), near_milli_of(pod, static=static)
    return _Room(node, empty).refusal(pod.whole, choice, cpu_milli, steps)


class _Choice(msgspec.Struct, frozen=True):
    """The devices of a part of the pod, and its own CPUs if the kubelet aligns them with these."""

    requested: dict[str, int]
    mask: int
    """The NUMA nodes that they most likely come from."""
    possible: list[int]
    """All sets of NUMA nodes that they may come from."""
    more_nodes: int = 0
    """How many more NUMA nodes these are than on an empty machine."""
    refusal: Refusal | None = None


def _devices(node: ZonedNode, part: PodPart) -> dict[str, int]:
    return {
        name: amount for name, amount in part.taken.items() if foreign(name) and name in node.hinted
    }


def _shared_milli(pod: NumaRequest, part: PodPart, static: bool) -> int:
    """The CPU request that counts near the devices. A whole pod counts without its containers that
    have no devices, which run anywhere."""
    if part.kind is PartKind.POD:
        return near_milli_of(pod, static=static)
    return part.requests.get("cpu", 0) - (part.exclusive_milli if static else 0)


def _choose(
    node: ZonedNode,
    available: Mapping[str, Mapping[int, int]],
    part: PodPart,
    devices: dict[str, int],
    steps: Steps,
) -> _Choice:
    fewest = max(
        fewest_nodes((amount, tuple(node.hinted[name].items()))) for name, amount in devices.items()
    )
    owns_cpus = bool(part.exclusive_milli and "cpu" in node.hinted)
    requested, masks = devices, _masks(node, available, devices, fewest, steps)
    refusal = None
    if not masks or masks[0].bit_count() > fewest:
        masks = masks or [of_nodes(node.zones)]
        refusal = _misfit(Reason.DEVICES_APART, part, next(iter(devices)), ids(min(masks)))
    elif owns_cpus and node.policy is NumaPolicy.NONE:
        refusal = _unaligned(part)
    elif owns_cpus:
        requested = {**devices, "cpu": part.exclusive_milli}
        with_cpus = _masks(node, available, requested, fewest, steps)
        if not with_cpus or with_cpus[0].bit_count() > fewest:
            refusal = _misfit(Reason.NO_CPUS_NEAR, part, "cpu", ids(min(masks)))
        masks = with_cpus or masks
    mask = min(masks)
    possible = masks if node.policy is NumaPolicy.NONE else [mask]
    return _Choice(requested, mask, possible, max(0, mask.bit_count() - fewest), refusal)


def _masks(
    node: ZonedNode,
    available: Mapping[str, Mapping[int, int]],
    requested: Mapping[str, int],
    fewest: int,
    steps: Steps,
) -> list[int]:
    """The smallest sets of NUMA nodes, of `fewest` or more, that have enough; all of one size."""
    useful = [
        zone for zone in node.zones if any(available[name].get(zone, 0) > 0 for name in requested)
    ]
    masks: list[int] = []
    for mask in subsets(useful, fewest):
        steps.take(1 + len(requested))
        if masks and mask.bit_count() > masks[0].bit_count():
            break
        if all(
            sum(available[name].get(zone, 0) for zone in ids(mask)) >= amount
            for name, amount in requested.items()
        ):
            masks.append(mask)
    return masks


def _take(amounts: dict[int, int], mask: int, amount: int) -> None:
    """Takes an amount from NUMA nodes, first from those with the least."""
    for zone in sorted(ids(mask), key=lambda zone: (amounts.get(zone, 0), zone)):
        taken = min(amounts.get(zone, 0), amount)
        if taken > 0:
            amounts[zone] -= taken
            amount -= taken


class _Room:
    """The CPUs that containers which own none have near to their devices."""

    def __init__(self, node: ZonedNode, empty: ZonedNode) -> None:
        self._node = node
        self._with_cpus = {
            zone for zone, amount in empty.available.get("cpu", {}).items() if amount
        }
        self._load = Load(node.available.get("cpu", {}))
        for mask, cpu_milli in node.near.items():
            self._load.add(CpuSet.from_int(mask), cpu_milli)

    def refusal(
        self, part: PodPart, choice: _Choice, cpu_milli: int, steps: Steps
    ) -> Refusal | None:
        """Why the part may have no CPUs near to its devices. `cpu_milli`: its request for CPUs that
        it shares."""
        steps.take(len(choice.possible) * (1 + len(self._node.near) ** 2 // 16))
        if not cpu_milli and part.exclusive_milli:
            return None
        for mask in choice.possible:
            nodes = self._near(mask)
            left = self._load.left(nodes)
            if not nodes & self._load.nodes or (left is not None and left < cpu_milli):
                lacking = tuple(nodes) or ids(mask)
                return Refusal(
                    Reason.NO_CPUS_NEAR,
                    "cpu",
                    cpu_milli,
                    max(0, left or 0),
                    lacking,
                    kind=part.kind,
                    name=part.name,
                )
        return None

    def take(self, choice: _Choice, cpu_milli: int) -> None:
        self._load.add(self._near(choice.mask), cpu_milli)

    def _near(self, mask: int) -> CpuSet:
        """The NUMA nodes of a mask; instead of each one without CPUs, the nearest ones that have
        some."""
        return CpuSet(near for zone in ids(mask) for near in self._nearest(zone))

    def _nearest(self, zone: int) -> list[int]:
        if zone in self._with_cpus:
            return [zone]
        zones = self._node.zones
        if zone not in zones:  # a Device object names it, and the report does not
            return []
        row = self._node.distances[zones.index(zone)]
        distances = {
            other: row[place]
            for place, other in enumerate(zones)
            if other in self._with_cpus and row[place] < FAR
        }
        least = min(distances.values(), default=FAR)
        return [other for other, distance in distances.items() if distance == least]


def _unusable(node: ZonedNode, pod: NumaRequest, free: Mapping[str, Mapping[int, int]]) -> int:
    """How many free devices, of those that the pod requests, no pod could get near, in sum over the
    sizes of pods."""
    resources = {name for part in pod.parts for name in _devices(node, part)}
    return sum(
        _broken_off(size, node.hinted[name], free[name])
        for name in resources
        for size in _sizes(node, name)
    )


def _count_sizes(node: ZonedNode, pod: NumaRequest, steps: Steps) -> None:
    """Takes the steps of what `_unusable` computes, before and after."""
    resources = {name for part in pod.parts for name in _devices(node, part)}
    sizes = sum(len(_sizes(node, name)) for name in resources)
    steps.take(2 * sizes * (1 + len(node.zones) // 4))


def _sizes(node: ZonedNode, resource: str) -> list[int]:
    total = sum(node.hinted[resource].values())
    return sorted({*(1 << power for power in range(1, total.bit_length())), total} - {0, 1})


def _broken_off(size: int, capacity: Mapping[int, int], free: Mapping[int, int]) -> int:
    count = fewest_nodes((size, tuple(capacity.items())))
    amounts = sorted(free.values(), reverse=True)
    groups = (amounts[first : first + count] for first in range(0, len(amounts), count))
    return sum(amounts) - sum(sum(group) // size * size for group in groups)


def _rated(
    node: ZonedNode, pod: NumaRequest, more_nodes: int, lost: int, refusal: Refusal | None
) -> LocalityRating:
    resources = {name for part in pod.parts for name in _devices(node, part)}
    most = sum(len(_sizes(node, name)) * sum(node.hinted[name].values()) for name in resources)
    near = refusal is None
    levels = NEAR if near else NEAR // 2
    points = levels * (most - lost) // (2 * most) if most else levels
    base = NEAR if near else max(0, levels - 1 - _POINTS_OF_NODE * more_nodes)
    return LocalityRating(base + points, (more_nodes, lost), refusal)


_POINTS_OF_NODE: Final = 8


def _unaligned(part: PodPart) -> Refusal:
    who = f"{part.kind} {part.name}".rstrip()
    detail = f"{who}, by a static kubelet without a topology manager"
    return Refusal(Reason.NOT_NEAR, "cpu", part.exclusive_milli, detail=detail)


def _misfit(reason: Reason, part: PodPart, resource: str, nodes: tuple[int, ...]) -> Refusal:
    amount = part.requests.get(resource, 0)
    return Refusal(reason, resource, amount, nodes=nodes, kind=part.kind, name=part.name)
