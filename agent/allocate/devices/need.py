"""A pod's request for one type of devices on a node, and the devices that it may have, in the order
of its strategy.

Types that no table has: the node's Device object lists the resources of its devices, and so the
type of a resource (`typed`). The amounts of its largest device are those of a whole one, whatever
they count: 100 percent, one device, or bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.allocate.devices.inventory import Fleet, Inventory, NodeDevices, Stock, device_score
from agent.allocate.placement.demand import CardOrder
from agent.allocate.refusal import Reason, Refusal
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import Strategy
from agent.model.devices.device_allocation import (
    DeviceAllocateStrategy,
    DeviceHint,
    DeviceTopologyScope,
    Exclusion,
    PartitionSpec,
)
from agent.model.devices.device_object import GPU_MEMORY, GPU_MEMORY_RATIO, Device, DeviceType
from agent.model.devices.device_request import FULL, DeviceRequest, TypeRequest, names
from agent.model.pod.numa_request import foreign


class Need(msgspec.Struct, frozen=True):
    """A pod's request for one type. `partition`: the pod's preference of GPU partitions."""

    node: NodeDevices
    kind: str
    request: TypeRequest
    hint: DeviceHint | None
    partition: PartitionSpec | None
    candidates: Candidates

    @property
    def scope(self) -> DeviceTopologyScope:
        return self.hint.scope if self.hint else DeviceTopologyScope.ANYWHERE

    @property
    def of_gpus(self) -> bool:
        return self.kind == DeviceType.GPU

    def within(self, mask: int) -> Need:
        """The same need, restricted to these devices."""
        candidates = self.candidates.within(mask)
        return Need(self.node, self.kind, self.request, self.hint, self.partition, candidates)

    def at_least(self, count: int) -> Need:
        """The same need for more devices; the number of GPUs does not change."""
        request = self.request
        if self.of_gpus or request.count >= count:
            return self
        more = msgspec.structs.replace(request, count=count)
        return Need(self.node, self.kind, more, self.hint, self.partition, self.candidates)


def listed_resources(devices: Iterable[Device]) -> set[str]:
    """The extended resources of a node's devices that only a Device object assigns to a type: those
    of types without a rule in `device_request`, and further ones of RDMA devices and
    FPGAs."""
    listed = {
        name
        for device in devices
        if device.type != DeviceType.GPU
        for name in device.resources
        if foreign(name)
    }
    return listed - names(listed)


def typed(request: DeviceRequest, inventory: Inventory) -> DeviceRequest | Refusal:
    """The request with a type for each of its `listed` resources. Resources of one type are
    requested together, also beside `koordinator.sh/rdma` or `fpga`."""
    if not request.listed:
        return request
    totals: dict[str, dict[str, int]] = {}
    for name, amount in request.listed.items():
        kinds = inventory.types.get(name, ())
        if len(kinds) != 1:
            return Refusal(Reason.DEVICE_SEVERAL_TYPES if kinds else Reason.DEVICE_NO_DEVICES, name)
        totals.setdefault(kinds[0], {})[name] = amount
    requests = dict(request.requests)
    for kind, total in sorted(totals.items()):
        known = requests[kind].total if kind in requests else {}
        hint = request.preferences.hints.get(kind)
        divided = _divided({**known, **total}, inventory.fleets[kind].whole, hint)
        if isinstance(divided, Reason):
            return Refusal(divided, ", ".join(total))
        requests[kind] = divided
    return DeviceRequest(requests, request.preferences)


def _divided(
    total: dict[str, int], whole: Mapping[str, int], hint: DeviceHint | None
) -> TypeRequest | Reason:
    """Divides the amounts over the fewest devices that have them. An amount that one device has
    comes from one device; a larger one must be a multiple, and comes from whole devices. Several
    resources are divided over the same number of devices. With several devices, the request must
    take all of at least one resource from each."""
    if not all(whole.get(name, 0) > 0 for name in total):
        return Reason.DEVICE_INSUFFICIENT
    count = max(-(-amount // whole[name]) for name, amount in total.items())
    if count > 1 and all(amount != count * whole[name] for name, amount in total.items()):
        return Reason.DEVICE_UNEVEN
    if any(amount % count for amount in total.values()):
        return Reason.DEVICE_UNEVEN
    counted = hint is not None and hint.strategy is DeviceAllocateStrategy.REQUESTS_AS_COUNT
    if counted and count == 1 and len(set(total.values())) > 1:
        return Reason.DEVICE_UNEVEN
    per = {name: amount // count for name, amount in total.items()}
    return TypeRequest(total, count, per, whole={name: whole[name] for name in total})


def hinted(wanted: TypeRequest, hint: DeviceHint | None, matching: int) -> TypeRequest:
    """The request for devices other than GPUs after a pod's hint is applied; `matching`: the number
    of healthy devices that the hint selects. A request for several devices is not changed. A number
    of devices is the same in all resources of the request (see `typed`)."""
    if hint is None or wanted.count > 1:
        return wanted
    match hint.strategy:
        case DeviceAllocateStrategy.ONE:
            return wanted
        case DeviceAllocateStrategy.APPLY_FOR_ALL:
            return msgspec.structs.replace(wanted, count=matching)
        case DeviceAllocateStrategy.REQUESTS_AS_COUNT:
            alone = hint.exclusion is Exclusion.DEVICE_LEVEL
            per = {name: wanted.whole.get(name, FULL) if alone else 1 for name in wanted.total}
            return msgspec.structs.replace(wanted, count=max(wanted.total.values()), per=per)


def filled(per: Mapping[str, int], capacity: Mapping[str, int]) -> dict[str, int]:
    """The amounts that a card of this capacity gives. If only one of memory and memory ratio is
    requested, the other follows from it, rounded down, if the card has memory."""
    whole = capacity.get(GPU_MEMORY, 0)
    given = dict(per)
    if whole > 0:
        if GPU_MEMORY not in per and GPU_MEMORY_RATIO in per:
            given[GPU_MEMORY] = per[GPU_MEMORY_RATIO] * whole // FULL
        elif GPU_MEMORY_RATIO not in per and GPU_MEMORY in per:
            given[GPU_MEMORY_RATIO] = int(per[GPU_MEMORY] / whole * FULL)
    return given


def need_of(
    node: NodeDevices,
    kind: str,
    request: TypeRequest,
    hint: DeviceHint | None,
    partition: PartitionSpec | None,
    numa: int | None,
    strategy: Strategy | CardOrder | None,
) -> Need | Reason:
    """The need for one type; the reason if the node could not serve it even without other
    pods."""
    fleet = node.inventory.fleets.get(kind)
    if fleet is None:
        return Reason.DEVICE_NO_DEVICES
    if numa is not None and not fleet.numa:
        return Reason.DEVICE_NO_TOPOLOGY
    if hint is not None:
        if kind != DeviceType.GPU:
            request = hinted(request, hint, (selected(fleet, hint) & fleet.healthy).bit_count())
            if not request.count:
                return Reason.DEVICE_INSUFFICIENT
        if hint.vf_selector is not None and not fleet.virtual:
            return Reason.DEVICE_NO_VIRTUAL_FUNCTIONS
    gives = filled if kind == DeviceType.GPU else None
    candidates = candidates_of(fleet, node.stocks[kind], request.per, hint, numa, strategy, gives)
    return Need(node, kind, request, hint, partition, candidates)


def steps_of_need(node: NodeDevices, kind: str, hint: DeviceHint | None) -> int:
    """The steps of `need_of`, by the number of devices."""
    fleet = node.inventory.fleets.get(kind)
    if fleet is None:
        return 1
    labels = 0 if hint is None or hint.selector is None else 2 * len(fleet.devices)
    return 5 + len(fleet.devices) // 2 + len(fleet.numa) // 4 + labels


class Candidates(msgspec.Struct, frozen=True):
    """The devices of one type that a pod may have."""

    fleet: Fleet
    stock: Stock
    per: dict[str, int]
    """What the pod gets of each device."""
    allowed: int
    """The devices that hint, NUMA nodes and exclusivity admit."""
    fitting: int
    """The devices of `allowed` that have `per` free."""
    used: int
    """The devices that packing counts as in use. An unhealthy card counts only if labels or NUMA
    nodes exclude it."""
    strategy: Strategy | CardOrder | None
    """None for no preference."""

    def within(self, mask: int) -> Candidates:
        """The same, restricted to these devices."""
        return Candidates(
            self.fleet,
            self.stock,
            self.per,
            self.allowed & mask,
            self.fitting & mask,
            self.used,
            self.strategy,
        )

    def score_of(self, minor: int) -> int:
        if self.strategy is None:
            return 0
        if isinstance(self.strategy, CardOrder):
            return self.strategy.score_of(minor)
        total, free = self.fleet.totals[minor], self.stock.free[minor]
        return device_score(self.fleet.weighed, self.per, total, free, self.strategy)

    def ordered(self) -> list[int]:
        """The fitting devices, best first; among equal ones the lowest minor first."""
        minors = list(members(self.fitting))
        return minors if self.strategy is None else sorted(minors, key=lambda m: -self.score_of(m))


def candidates_of(
    fleet: Fleet,
    stock: Stock,
    per: dict[str, int],
    hint: DeviceHint | None,
    numa: int | None,
    strategy: Strategy | CardOrder | None,
    gives: Callable[[dict[str, int], Mapping[str, int]], Mapping[str, int]] | None = None,
) -> Candidates:
    """`gives`: the amounts that a device of a given capacity gives to a request for `per`; None:
    `per`."""
    allowed = allowed_devices(fleet, hint, numa)
    used = stock.used & ~(allowed & ~fleet.healthy)
    if hint is not None and hint.exclusion is Exclusion.PCIE_LEVEL:
        allowed &= _undivided(fleet, stock)
    fitting = 0
    items = tuple(per.items())
    healthy = allowed & fleet.healthy
    for minor, free in stock.free.items():
        if not healthy >> minor & 1 or not _gives(free, items):
            continue
        total = fleet.totals[minor]
        # A whole card has all amounts that follow from `per`.
        whole = free is total and total.get(GPU_MEMORY_RATIO) == FULL
        if gives is None or whole or _has(free, gives(per, total)):
            fitting |= 1 << minor
    return Candidates(fleet, stock, per, allowed, fitting, used, strategy)


def allowed_devices(fleet: Fleet, hint: DeviceHint | None, numa: int | None) -> int:
    """The devices that labels and NUMA nodes admit. `numa`: a mask of NUMA nodes. A device without
    a NUMA node is on all of them, one without a topology on none."""
    allowed = fleet.all_minors
    if numa is not None:
        allowed = 0
        for node, mask in fleet.numa.items():
            if node < 0 or numa >> node & 1:
                allowed |= mask
    return allowed & selected(fleet, hint)


def selected(fleet: Fleet, hint: DeviceHint | None) -> int:
    """The devices whose labels the hint selects."""
    if hint is None or hint.selector is None:
        return fleet.all_minors
    matches = hint.selector.matches
    return sum(1 << minor for minor, each in fleet.devices.items() if matches(each.labels))


def _gives(free: Mapping[str, int], wanted: tuple[tuple[str, int], ...]) -> bool:
    for name, amount in wanted:  # noqa: SIM110
        if free.get(name, 0) < amount:
            return False
    return True


def _has(free: Mapping[str, int], given: Mapping[str, int]) -> bool:
    """Checks the resources that a device lists; it may give a share of others."""
    return all(free[name] >= amount for name, amount in given.items() if name in free)


def _undivided(fleet: Fleet, stock: Stock) -> int:
    """The devices under whose switch no device is held by a pod."""
    used = stock.used
    for mask in fleet.pcies.values():
        if mask & stock.used:
            used |= mask
    return fleet.all_minors & ~used
