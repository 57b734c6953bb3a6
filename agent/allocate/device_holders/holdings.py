"""Which pod holds which device, and which CPUs of a ResourceClaim; and which two containers may
hold one device at the same time.

For one device and container only the best source counts. A checkpoint has the replicas of a device,
which the container's environment does not have; the environment has the MIG instances, which the
device nodes do not have. A scheduler's allocation replaces the kubelet's report. A device that is
not in the allocation also counts if the container has it. The environment alone does not prove
that, because any pod can name any device there.

Two containers may hold one device by a table of the forms in which they hold it. The resource names
do not matter: a card that is held as nvidia.com/gpu conflicts with the same card as
koordinator.sh/gpu.

CPUs that a DRA driver gave to a container are exclusive and in no pool. They need two sources: the
driver's variable in the container has the CPUs and the uid of the claim (dra-driver-cpu), and the
kubelet reports that the container has a claim on CPUs, with the uid in its CDI name. A claim's
device alone may be a whole NUMA node, and any pod can set a variable.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from itertools import combinations
from typing import Final

import msgspec

from agent.allocate.device_holders.names import Keys, is_number, meaning
from agent.allocate.device_holders.reported_devices import CPU_DRIVER
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.devices import device_allocation
from agent.model.devices.device_allocation import AllocatedDevices, DeviceAmounts, VirtualFunctions
from agent.model.devices.device_object import Device, DeviceType
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource, ReportedDevices
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.pods import Pod


class Rule(enum.StrEnum):
    KEPT = "kept"
    REFUSED = "refused"
    OTHER_PART = "kept with another part"
    OTHER_REPLICA = "kept with another replica of the same resource"
    FITTING = "kept while all shares fit together"
    OTHER_CPUS = "kept with other CPUs"


TABLE: Final[Mapping[frozenset[Form], Rule]] = {
    frozenset({Form.WHOLE}): Rule.REFUSED,
    frozenset({Form.WHOLE, Form.SHARE}): Rule.REFUSED,
    frozenset({Form.WHOLE, Form.REPLICA}): Rule.REFUSED,
    frozenset({Form.WHOLE, Form.INSTANCE}): Rule.REFUSED,
    frozenset({Form.WHOLE, Form.FUNCTION}): Rule.REFUSED,
    frozenset({Form.SHARE}): Rule.FITTING,
    # Time-slicing and MIG guarantee nothing that could be combined with a percentage.
    frozenset({Form.SHARE, Form.REPLICA}): Rule.REFUSED,
    frozenset({Form.SHARE, Form.INSTANCE}): Rule.REFUSED,
    # A scheduler divides the physical function; virtual functions are counted separately.
    frozenset({Form.SHARE, Form.FUNCTION}): Rule.KEPT,
    frozenset({Form.REPLICA}): Rule.OTHER_REPLICA,
    frozenset({Form.REPLICA, Form.INSTANCE}): Rule.REFUSED,
    frozenset({Form.REPLICA, Form.FUNCTION}): Rule.REFUSED,
    frozenset({Form.INSTANCE}): Rule.OTHER_PART,
    frozenset({Form.INSTANCE, Form.FUNCTION}): Rule.REFUSED,
    frozenset({Form.FUNCTION}): Rule.OTHER_PART,
    **{frozenset({Form.OPEN, form}): Rule.KEPT for form in Form},
    # CPUs take nothing of a device, and no owner and no shared pool has them (allocate.pools).
    **{frozenset({Form.CPUS, form}): Rule.KEPT for form in Form},
    frozenset({Form.CPUS}): Rule.OTHER_CPUS,
}
"""The rule for two holders, by the form in which each holds the device. One pod may hold a device
by two names, and two pods may hold one by the same claim."""


class Conflict(msgspec.Struct, frozen=True):
    """Two holdings of a device that exclude each other."""

    kept: DeviceHolding
    refused: DeviceHolding
    rule: Rule


def conflicts(
    holdings: Iterable[DeviceHolding], capacities: Mapping[tuple[str, str], Mapping[str, int]]
) -> tuple[Conflict, ...]:
    """The conflicts between two holdings of a device. The one from the less reliable source is
    refused, of equal sources the later one in the given order. If shares exceed the device, the
    last ones are refused.

    `capacities`: by type and id of the device; a resource without an entry has no limit."""
    by_device: dict[tuple[str, str], list[DeviceHolding]] = {}
    for holding in holdings:
        if holding.device or holding.form is Form.CPUS:
            by_device.setdefault((holding.type, holding.device), []).append(holding)
    refusals = []
    for device, held in sorted(by_device.items()):
        held.sort(key=lambda holding: _ORDER[holding.source])
        capacity = capacities.get(device, {})
        for one, other in combinations(held, 2):
            rule = _rule(one, other)
            if (
                rule is not Rule.FITTING
                and not _same_pod_or_claim(one, other)
                and not _allowed(rule, one, other)
            ):
                refusals.append(Conflict(one, other, rule))
        refusals += _overfull(held, capacity)
    return tuple(refusals)


def _same_pod_or_claim(one: DeviceHolding, other: DeviceHolding) -> bool:
    return one.uid == other.uid or one.claim == other.claim != ""


def _rule(one: DeviceHolding, other: DeviceHolding) -> Rule:
    return TABLE[frozenset({one.form, other.form})]


def _allowed(rule: Rule, one: DeviceHolding, other: DeviceHolding) -> bool:
    if rule is Rule.OTHER_PART:
        return _differ(one.part, other.part)
    if rule is Rule.OTHER_REPLICA:
        return one.resource == other.resource and one.part != other.part
    if rule is Rule.OTHER_CPUS:
        return not CpuSet.parse(one.part) & CpuSet.parse(other.part)
    return rule is Rule.KEPT


def _differ(one: str, other: str) -> bool:
    """Whether they are different parts, or different replicas of one part."""
    (part, _, replica), (other_part, _, other_replica) = one.partition("::"), other.partition("::")
    return part != other_part or bool(replica and other_replica and replica != other_replica)


def _fits(shares: Iterable[DeviceHolding], capacity: Mapping[str, int]) -> bool:
    sums: dict[str, int] = {}
    for share in shares:
        for resource, amount in share.amounts.items():
            sums[resource] = sums.get(resource, 0) + amount
    return all(amount <= capacity.get(resource, amount) for resource, amount in sums.items())


def _overfull(held: list[DeviceHolding], capacity: Mapping[str, int]) -> list[Conflict]:
    """The conflict of each share that does not fit together with those before it."""
    kept: list[DeviceHolding] = []
    refusals = []
    for share in held:
        if share.form is Form.SHARE:
            if kept and not _fits((*kept, share), capacity):
                refusals.append(Conflict(kept[0], share, Rule.FITTING))
            else:
                kept.append(share)
    return refusals


_ORDER: Final = {source: place for place, source in enumerate(HoldingSource)}

_TAKING: Final = frozenset({Form.WHOLE, Form.REPLICA, Form.INSTANCE})

_OF_CONTAINER: Final = frozenset({HoldingSource.CONTAINER, HoldingSource.ENVIRONMENT})
"""What the container itself has: it uses these devices, whatever the pod's allocation is."""

_MAX_LISTED: Final = 8
"""The most names in one message."""

_MAX_CHARACTERS: Final = 64
"""The most characters of a name in a message."""

_CPU_DEVICE: Final = re.compile(r"cpudev(numa|socket|machine)?\d*")
"""The variable of dra-driver-cpu, which other drivers of CPUs also use."""


class ResolvedHoldings(msgspec.Struct, frozen=True):
    """The devices that containers hold."""

    holdings: tuple[DeviceHolding, ...] = ()
    """By pod, container and device."""
    problems: tuple[str, ...] = ()
    """Devices that are missing on this node."""
    notes: tuple[str, ...] = ()
    """Names that do not stand for a device, with the reason."""
    unproven: tuple[str, ...] = ()
    """Devices that are not counted because only the author of the pod names them."""


def resolve_holdings(
    reported_devices: Iterable[ReportedDevices],
    keys: Keys,
    allocated: Mapping[str, Mapping[str, Set[str]]],
    present: Collection[str] | None,
) -> ResolvedHoldings:
    """Decides which device each container holds. A device in a container's environment counts only
    if another source of the container has it too.

    `allocated`: the ids of the devices or parts that a scheduler allocated, by pod uid and device
        type. They are not in the result. For these types they replace the kubelet's report; other
        devices of a container itself still count, because the annotation may have changed since the
        container was created.
    `present`: the pods on this node, None if unknown; the kubelet removes ended pods only
        when it admits the next one."""
    by_device: dict[tuple[str, str, str, str], list[DeviceHolding]] = {}
    problems: list[str] = []
    notes: list[str] = []
    unproven: list[str] = []
    of_present = [
        reported
        for reported in sorted(reported_devices, key=_source_order)
        if present is None or reported.uid in present
    ]
    proven = {
        _part(holding)
        for reported in of_present
        if reported.source is not HoldingSource.ENVIRONMENT
        for holding in meaning(reported, keys).holdings
    }
    for reported in of_present:
        by_environment = reported.source is HoldingSource.ENVIRONMENT
        if by_environment and reported.resource == CPU_DRIVER:
            continue
        of_pod = allocated.get(reported.uid, {})
        if DeviceType.GPU in of_pod:
            # Numbers may have changed since the container was created.
            kept = tuple(name for name in reported.names if not is_number(name))
            reported = msgspec.structs.replace(reported, names=kept)
        read = meaning(reported, keys)
        by = reported.resource or reported.source.value
        title = f"pod {reported.uid}, {reported.container}: {by}"
        listed = read.unknown[:_MAX_LISTED]
        names_alone = list(read.unknown) if by_environment else []
        if not by_environment:
            problems += [
                f"{title}: {_quoted(name)} is not a device of this node" for name in listed
            ]
            if more := len(read.unknown) - len(listed):
                problems.append(f"{title}: {more} more names are not devices of this node")
        notes += [f"{title}: {_quoted(name)} {why}" for name, why in read.left]
        for holding in read.holdings:
            allocated_ids = of_pod.get(holding.type)
            if allocated_ids is not None and (
                holding.source not in _OF_CONTAINER
                or allocated_ids & {holding.device, holding.part}
            ):
                continue
            if by_environment and proven.isdisjoint((_part(holding), _whole(holding))):
                names_alone.append(holding.part or holding.device)
                continue
            key = holding.uid, holding.container, holding.type, holding.device
            held = by_device.setdefault(key, [])
            if not held or (held[0].source is holding.source and holding not in held):
                held.append(holding)
        if names_alone:
            some = ", ".join(map(_quoted, names_alone[:_MAX_LISTED]))
            unproven.append(
                f"{title}: it names devices that neither the kubelet nor the runtime gave it, which"
                f" do not count: {some} ({len(names_alone)} in all)"
            )
    ordered = sorted((holding for held in by_device.values() for holding in held), key=_order)
    return ResolvedHoldings(
        tuple(ordered),
        tuple(dict.fromkeys(problems)),
        tuple(dict.fromkeys(notes)),
        tuple(dict.fromkeys(unproven)),
    )


def _part(holding: DeviceHolding) -> tuple[str, ...]:
    """The container and the device, or the part of it that no other container can have."""
    instance = holding.form in (Form.INSTANCE, Form.FUNCTION)
    part = holding.part.partition("::")[0] if instance else ""
    return (*_whole(holding)[:-1], part)


def _whole(holding: DeviceHolding) -> tuple[str, ...]:
    return holding.uid, holding.container, holding.type, holding.device, ""


def _quoted(name: str) -> str:
    return repr(name[:_MAX_CHARACTERS])


def _source_order(reported: ReportedDevices) -> tuple[int, str, str, str]:
    return _ORDER[reported.source], reported.uid, reported.container, reported.resource


def _order(holding: DeviceHolding) -> tuple[str, ...]:
    return holding.uid, holding.container, holding.type, holding.device, holding.part


def of_allocation(
    uid: str,
    amounts: DeviceAmounts,
    functions: VirtualFunctions,
    devices: Iterable[Device],
) -> tuple[DeviceHolding, ...]:
    """The annotation of a pod as holdings. An allocation of all amounts of a device is the whole
    device, a smaller one is a share."""
    by_minor = {(device.type, device.minor): device for device in devices}
    found = []
    for key in sorted(amounts.keys() | functions.keys()):
        device = by_minor.get(key)
        if device is None:
            continue
        held = amounts.get(key, {})
        if held:
            all_of_it = all(held[name] >= device.resources.get(name, 0) for name in held)
            form = Form.WHOLE if all_of_it else Form.SHARE
            found.append(_allocated(uid, device, form, amounts=held))
        found += [
            _allocated(uid, device, Form.FUNCTION, part=bus)
            for bus in sorted(functions.get(key, ()))
        ]
    return tuple(found)


def _allocated(
    uid: str, device: Device, form: Form, part: str = "", amounts: Mapping[str, int] | None = None
) -> DeviceHolding:
    return DeviceHolding(
        uid,
        "",
        "",
        device.type,
        device.uuid,
        form,
        part,
        dict(amounts or {}),
        HoldingSource.ALLOCATION,
    )


def taken(holdings: Iterable[DeviceHolding], devices: Iterable[Device]) -> DeviceAmounts:
    """The holdings that schedulers must count as used. A shared card counts as a whole, because a
    percentage can't be combined with a replica or an instance. Virtual functions and open devices
    do not count."""
    by_id = {(device.type, device.uuid): device for device in devices}
    found: DeviceAmounts = {}
    for each in holdings:
        device = by_id.get((each.type, each.device))
        if device is not None and each.form in _TAKING:
            found[device.type, device.minor] = dict(device.resources)
    return dict(sorted(found.items()))


def functions_taken(
    holdings: Iterable[DeviceHolding], devices: Iterable[Device]
) -> VirtualFunctions:
    """The virtual functions that are held."""
    minors = {(device.type, device.uuid): device.minor for device in devices}
    found: VirtualFunctions = {}
    for each in holdings:
        minor = minors.get((each.type, each.device))
        if minor is not None and each.form is Form.FUNCTION:
            key = each.type, minor
            found[key] = found.get(key, frozenset()) | {each.part}
    return found


def without_taken(
    devices: Iterable[Device], holdings: Iterable[DeviceHolding]
) -> tuple[Device, ...]:
    """The devices for schedulers that ignore the annotations of a Device: taken devices have the
    amount 0 of each resource, and taken virtual functions are left out."""
    devices, holdings = tuple(devices), tuple(holdings)
    used = taken(holdings, devices)
    functions = functions_taken(holdings, devices)
    return tuple(
        msgspec.structs.replace(
            device,
            resources=dict.fromkeys(device.resources, 0)
            if (device.type, device.minor) in used
            else device.resources,
            vf_groups=tuple(
                msgspec.structs.replace(
                    group,
                    vfs=tuple(
                        each
                        for each in group.vfs
                        if each.bus not in functions.get((device.type, device.minor), ())
                    ),
                )
                for group in device.vf_groups
            ),
        )
        for device in devices
    )


def allocated_by_schedulers(
    pods: Iterable[Pod],
) -> tuple[dict[str, AllocatedDevices], tuple[str, ...]]:
    """The devices that schedulers allocated, by pod uid, and errors for annotations that can't be
    read."""
    found: dict[str, AllocatedDevices] = {}
    problems = []
    for pod in pods:
        try:
            of_pod = device_allocation.allocated_devices(pod.annotations)
        except AnnotationError as error:
            problems.append(f"pod {pod.title}: {error}")
            continue
        if any(of_pod.values()):
            found[pod.uid] = {kind: devices for kind, devices in of_pod.items() if devices}
    return found, tuple(problems)


def held_by_two_pods(
    held: Mapping[str, DeviceAmounts],
    devices: Iterable[Device],
    holdings: Iterable[DeviceHolding],
    pods: Mapping[str, Pod],
) -> Iterator[str]:
    """Yields a message for each device that two pods hold although they may not share it."""
    devices = tuple(devices)
    allocations = (
        holding
        for uid, of_pod in sorted(held.items())
        for holding in of_allocation(uid, of_pod, {}, devices)
    )
    capacities = {(device.type, device.uuid): device.resources for device in devices}
    of_devices = (each for each in holdings if each.form is not Form.CPUS)
    for each in conflicts((*allocations, *of_devices), capacities):
        kept, refused = pods[each.kept.uid].title, pods[each.refused.uid].title
        what = f"{each.kept.type} {each.kept.device}"
        source = each.refused.source.value
        yield f"pod {refused} has {what}, which belongs to pod {kept} (source: {source})"


class ClaimedCpus(msgspec.Struct, frozen=True):
    """The CPUs of resource claims."""

    by_uid: dict[str, dict[str, CpuSet]] = {}
    """The CPUs by pod uid and container."""
    holdings: tuple[DeviceHolding, ...] = ()
    problems: tuple[str, ...] = ()
    """Claims whose CPUs can't be reserved."""


def claimed_cpus(reported_devices: Iterable[ReportedDevices]) -> ClaimedCpus:
    """The CPUs in the claims that the kubelet reports, and in those that containers' variables
    name."""
    reported_devices = tuple(reported_devices)
    claims: dict[tuple[str, str], list[ReportedDevices]] = {}
    for reported in reported_devices:
        if reported.source is HoldingSource.CLAIM and _gives_cpus(reported):
            claims.setdefault((reported.uid, reported.container), []).append(reported)
    by_uid: dict[str, dict[str, CpuSet]] = {}
    holdings: list[DeviceHolding] = []
    problems: list[str] = []
    for reported in reported_devices:
        if reported.source is not HoldingSource.ENVIRONMENT or reported.resource != CPU_DRIVER:
            continue
        named_cpus = ", ".join(reported.names)
        title = f"pod {reported.uid}, {reported.container}: CPUs {named_cpus} in a variable"
        of_container = claims.get((reported.uid, reported.container), ())
        claim = next((named for named in of_container if _is_of(named, reported.claim)), None)
        if claim is None:
            problems.append(f"{title}, and the kubelet reports no such claim")
            continue
        read = meaning(msgspec.structs.replace(reported, claim=claim.claim), {})
        problems += [f"{title}: {name!r} {why}" for name, why in read.left]
        problems += [f"{title}: {name!r} is not a list of CPUs" for name in read.unknown]
        for holding in read.holdings:
            if holding.form is Form.CPUS:
                of_pod = by_uid.setdefault(holding.uid, {})
                cpus = of_pod.get(holding.container, EMPTY) | CpuSet.parse(holding.part)
                of_pod[holding.container] = cpus
                holdings.append(holding)
    return ClaimedCpus(by_uid, tuple(holdings), tuple(problems))


def _gives_cpus(reported: ReportedDevices) -> bool:
    return reported.resource == CPU_DRIVER or any(map(_CPU_DEVICE.fullmatch, reported.names))


def _is_of(reported: ReportedDevices, uid: str) -> bool:
    """Whether one of the names is `claim-UID` or `claim-UID-...` of this uid."""
    names = (each.rpartition("=")[2] for each in reported.cdi)
    return any(name == f"claim-{uid}" or name.startswith(f"claim-{uid}-") for name in names)
