"""From what schedulers gave to the pods of a node to what each container sees of it.

An annotation is a wish until checked: a device that is not here, one that another pod has already,
or a card that only its MIG instances can be had of, is shown to nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

import msgspec

from agent.allocate.devices.request import Ask
from agent.allocate.visibility.isolation import NO_ISOLATION, Isolation, isolated
from agent.allocate.visibility.split import ContainerWish, SplitError, split
from agent.model.annotations import AnnotationError
from agent.model.device_allocation import Given, given
from agent.model.devicefiles import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices import DeviceType
from agent.model.nodestatus import FPGA, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from agent.model.visible import DeviceNode, HeldDevice, Visible, VisibleGpu

_WHOLE: Final = 100
_LONGEST: Final = 64
_PERCENTS: Final = (GPU_CORE, GPU_MEMORY_RATIO, RDMA, FPGA)


class DevicePod(msgspec.Struct, frozen=True):
    """`containers` in the order in which they start, None where nobody told their requests."""

    uid: str
    title: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str] = {}
    containers: tuple[ContainerWish, ...] | None = None


class PodShown(msgspec.Struct, frozen=True):
    """What a pod's containers see, by name, and `each` other one. `devices`: by uuid or PCI
    address, all that the pod has; none where it may not have them."""

    each: Visible
    containers: dict[str, Visible] = {}
    devices: frozenset[str] = frozenset()


class _RefusedError(ValueError):
    """Why a pod can't have what its annotation says."""


class _Found(msgspec.Struct, frozen=True):
    """A device of the annotation on this node. `keys`: of all that nobody else can have then."""

    given: Given
    keys: tuple[str, ...]
    gpu: VisibleGpu | None = None
    nodes: tuple[DeviceNode, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing of it is left to others: a function never is shared, and who says nothing
        of its part has all."""
        amounts = self.given.resources
        if self.given.functions or not any(amounts.get(name) for name in (*_PERCENTS, GPU_MEMORY)):
            return True
        return all(amounts[name] >= _WHOLE for name in _PERCENTS if name in amounts)

    def fits(self, others: Sequence[_Found]) -> bool:
        """Whether there is room for it beside these."""
        beside = (self, *others)
        return not others or (
            not any(each.whole for each in beside)
            and all(
                sum(each.given.resources.get(name, 0) for each in beside) <= _WHOLE
                for name in _PERCENTS
            )
        )


_Taken = dict[str, list[tuple[str, _Found]]]
"""By key, pods (their titles) and what they have."""


Elsewhere = Mapping[str, Mapping[str, str]]
"""By uuid or PCI address, what pods hold that no scheduler gave it to: their titles by uid."""


Holders = Mapping[str, Collection[str]]
"""By uuid or PCI address the pods (uids) that have it by a scheduler's word."""


def shown(
    pods: Iterable[DevicePod],
    files: DeviceFiles,
    isolation: Isolation = NO_ISOLATION,
    elsewhere: Elsewhere = MappingProxyType({}),
    before: Holders = MappingProxyType({}),
    running: Collection[str] = (),
) -> dict[str, PodShown]:
    """By uid, for pods that were given devices; none yet for pods with GPUs whose driver has not
    told them. Of devices of types and vendors that are not known here nothing is decided. `pods`:
    whoever has its devices already comes before whoever only claims them. `before`: who had what
    at the last look; who claims some of it anew comes after all others, as whoever may change a
    pod may change what it claims. `running`: uids of pods, also of others, that have containers."""
    answers: dict[str, PodShown] = {}
    resolved: list[tuple[DevicePod, dict[str, list[_Found]]]] = []
    for pod in pods:
        try:
            by_type = given(pod.annotations)
            ours = {
                kind: sorted(devices, key=_place)
                for kind, devices in by_type.items()
                if devices and _is_ours(kind, devices, files)
            }
            if by_type and not ours:
                answers[pod.uid] = PodShown(Visible())
            if not ours or (DeviceType.GPU in ours and files.cards is None):
                continue
            found = {
                kind: [_find(kind, each, files) for each in devices]
                for kind, devices in ours.items()
            }
        except (AnnotationError, _RefusedError) as error:
            answers[pod.uid] = PodShown(Visible(refused=str(error)))
            continue
        resolved.append((pod, found))
    here = frozenset(pod.uid for pod, _ in resolved)
    resolved.sort(key=lambda each: _claims_anew(each[0].uid, each[1], before, here))
    taken: _Taken = {}
    for pod, found in resolved:
        try:
            _check(pod.uid, found, taken, elsewhere, before, running)
        except _RefusedError as error:
            answers[pod.uid] = PodShown(Visible(refused=str(error)))
            continue
        answers[pod.uid] = _pod_shown(pod, found, files, isolation)
        for device in chain.from_iterable(found.values()):
            for key in device.keys:
                taken.setdefault(key, []).append((pod.title, device))
    return answers


def held(files: DeviceFiles, pods: Mapping[str, PodShown]) -> tuple[HeldDevice, ...]:
    """Every device of the node with the pods that have it, as hooks and the agent after us need to
    know them. An RDMA device is without its files: they are open to many at once, those of its
    functions are not."""
    holders: dict[str, list[str]] = {}
    for uid, pod in sorted(pods.items()):
        for device in pod.devices:
            holders.setdefault(device, []).append(uid)

    def one(uuid: str, nodes: Iterable[DeviceNode], index: str = "", card: str = "") -> HeldDevice:
        paths = tuple(each.path for each in nodes)
        return HeldDevice(uuid, index, card, paths, tuple(holders.get(uuid, ())))

    devices = []
    for each in files.cards or ():
        devices.append(one(each.gpu.uuid, each.gpu.nodes, each.gpu.index))
        devices += [
            one(
                part.uuid,
                (node for node in part.nodes if node not in each.gpu.nodes),
                part.index,
                each.gpu.uuid,
            )
            for part in each.instances
        ]
    for other in files.others:
        devices.append(one(other.uuid, () if other.type == DeviceType.RDMA else other.nodes))
        devices += [one(bus, nodes) for bus, nodes in sorted(other.functions.items())]
    return tuple(devices)


def _place(device: Given) -> tuple[int, str]:
    return device.minor, device.id


def _is_ours(kind: str, devices: Sequence[Given], files: DeviceFiles) -> bool:
    """GPUs of other vendors are called so too: no name of ours is theirs, and where there is none
    of our cards, those without a name are."""
    if kind != DeviceType.GPU:
        return kind in (DeviceType.RDMA, DeviceType.FPGA)
    ids = [each.id for each in devices if each.id]
    if not ids:
        return files.cards is None or bool(files.cards)
    return any(each.startswith(("GPU-", "MIG-")) for each in ids)


def _find(kind: str, device: Given, files: DeviceFiles) -> _Found:
    title = f"{kind} {device.id[:_LONGEST] or device.minor}"
    if kind == DeviceType.GPU:
        gpu = _gpu(title, device, files.cards or ())
        return _Found(device, (gpu.uuid,), gpu)
    other = _other(kind, title, device, files.others)
    if not device.functions:
        alone = _Found(device, (other.uuid,), nodes=other.nodes)
        parts = sorted(other.functions) if alone.whole else ()
        return msgspec.structs.replace(alone, keys=(other.uuid, *parts))
    nodes: list[DeviceNode] = []
    for bus in device.functions:
        if bus not in other.functions:
            raise _RefusedError(f"{title} has no virtual function {bus[:_LONGEST]} on this node")
        nodes += other.functions[bus]
    return _Found(device, device.functions, nodes=tuple(nodes))


def _gpu(title: str, device: Given, cards: Iterable[CardFiles]) -> VisibleGpu:
    for card in cards:
        for instance in card.instances:
            if device.id and device.id == instance.uuid:
                return instance
        if device.id == card.gpu.uuid if device.id else device.minor == card.minor:
            if card.divided:
                raise _RefusedError(f"{title} is divided, and only its MIG instances can be had")
            return card.gpu
    raise _RefusedError(f"{title} is not on this node")


def _other(kind: str, title: str, device: Given, others: Iterable[OtherFiles]) -> OtherFiles:
    for other in others:
        same = device.id == other.uuid if device.id else device.minor == other.minor
        if other.type == kind and same:
            return other
    raise _RefusedError(f"{title} is not on this node")


def _claims_anew(
    uid: str, found: Mapping[str, Iterable[_Found]], before: Holders, here: frozenset[str]
) -> bool:
    """Does it claim what another pod that is still here had, and it had not?"""
    keys = (key for device in chain.from_iterable(found.values()) for key in device.keys)
    had = (before.get(key, ()) for key in keys)
    return any(uid not in each and not here.isdisjoint(each) for each in had)


def _check(
    uid: str,
    found: Mapping[str, Iterable[_Found]],
    taken: _Taken,
    elsewhere: Elsewhere,
    before: Holders,
    running: Collection[str],
) -> None:
    """Raises _RefusedError for a device that others leave too little of. Plugins know nothing of
    what schedulers gave: who had a device keeps it from a plugin's pod that has no containers yet,
    and from any once it has its own."""
    for device in chain.from_iterable(found.values()):
        for key in device.keys:
            had = uid in before.get(key, ())
            for other, title in sorted(elsewhere.get(key, {}).items()):
                kept = had and (uid in running or other not in running)
                if other != uid and not kept:
                    raise _RefusedError(f"{key} belongs to pod {title}")
            others = taken.get(key, [])
            if not device.fits([other for _, other in others]):
                raise _RefusedError(f"{key} belongs to pod {others[0][0]}")


def _pod_shown(
    pod: DevicePod,
    found: Mapping[str, Sequence[_Found]],
    files: DeviceFiles,
    isolation: Isolation,
) -> PodShown:
    keys = frozenset(key for device in chain.from_iterable(found.values()) for key in device.keys)

    def visible(own: Mapping[str, Sequence[_Found]], wish: Ask | None) -> Visible:
        cards = own.get(DeviceType.GPU, ())
        gpus = tuple(dict.fromkeys(each.gpu for each in cards if each.gpu is not None))
        nodes = {
            kind: _nodes(own.get(kind, ()), files.common.get(kind, ()))
            for kind in sorted(found)
            if kind != DeviceType.GPU
        }
        seen = Visible(gpus if DeviceType.GPU in found else None, nodes)
        return isolated(seen, pod.labels, [each.given for each in cards], wish, isolation)

    asking = [each for each in pod.containers or () if found.keys() & each.wishes.keys()]
    if not asking:
        return PodShown(visible(found, None), {}, keys)
    shares: dict[str, dict[str, list[_Found]]] = {each.name: {} for each in asking}
    try:
        for kind, devices in found.items():
            for name, places in _places(kind, devices, asking).items():
                shares[name][kind] = [devices[place] for place in places]
    except SplitError as error:
        return PodShown(Visible(refused=str(error)), devices=keys)
    return PodShown(
        visible({}, None),
        {each.name: visible(shares[each.name], each.wishes.get(DeviceType.GPU)) for each in asking},
        keys,
    )


def _places(
    kind: str, devices: Sequence[_Found], containers: Sequence[ContainerWish]
) -> dict[str, tuple[int, ...]]:
    """Of other devices than GPUs a hint may have given another number than was asked for: who asks
    has all then."""
    try:
        return split([each.given for each in devices], kind, containers)
    except SplitError:
        if kind == DeviceType.GPU:
            raise
        everything = tuple(range(len(devices)))
        return {each.name: everything for each in containers if kind in each.wishes}


def _nodes(devices: Sequence[_Found], common: Iterable[DeviceNode]) -> tuple[DeviceNode, ...]:
    if not devices:
        return ()
    return (*common, *(node for each in devices for node in each.nodes))
