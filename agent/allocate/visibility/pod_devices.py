"""Derives the devices that each container sees from the allocations of schedulers (docs/devices.md,
"Device visibility"), and enforces a container's part of a GPU.

An annotation is a request until it is checked: a missing device, a device of another pod, or a card
that is only available as MIG instances is visible to no container, and the refusal has the reason.

The annotation has the devices of the pod; only the containers' requests show which containers
requested devices. Containers that run together take from the front of the list, in the order of
their specification: whole devices first, so that no whole one consists of two halves. An init
container ends before the next one starts: it takes from all devices that no earlier sidecar has,
and later containers may take the same ones.

HAMi-core enforces a part of a GPU in the container, if the pod requests it (Koordinator:
pkg/koordlet/runtimehooks/hooks/gpu/gpu.go, InjectContainerGPUEnv)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Final

import msgspec

from agent.model.devices.device_allocation import AllocatedDevice, allocated_devices
from agent.model.devices.device_files import CardFiles, DeviceFiles, OtherFiles
from agent.model.devices.device_object import (
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RESOURCE_OF,
    DeviceType,
)
from agent.model.devices.device_request import RequestError, TypeRequest, type_requests
from agent.model.devices.visibility import (
    DeviceNode,
    Mount,
    NodeDevice,
    NodeVisibility,
    Visibility,
    VisibleGpu,
    is_uuid,
)
from agent.model.pod.annotations import GPU_ISOLATION_PROVIDER, AnnotationError
from agent.model.pod.apiobjects import ApiPod

_HAMI_CORE: Final = "HAMi-core"

_LOCK_FOLDER: Final = "/tmp/vgpulock"
"""The path at which the library reads it in its container."""


class SplitError(ValueError):
    """Containers request more devices than their pod has; the text names the first container that
    does not get enough."""


class ContainerDeviceRequest(msgspec.Struct, frozen=True):
    """The request of one container."""

    name: str
    requests: Mapping[str, TypeRequest] = {}
    """By device type."""
    init: bool = False
    """It runs before the others."""
    sidecar: bool = False
    """It keeps running while all later ones run."""


def container_device_requests(pod: ApiPod) -> tuple[ContainerDeviceRequest, ...] | None:
    """In the order in which containers start; None if the request of a container has a meaning only
    together with those of others."""
    ordered = [(each, True) for each in pod.init_containers]
    ordered += [(each, False) for each in pod.containers]
    try:
        return tuple(
            ContainerDeviceRequest(
                each.name, type_requests({**each.requests, **each.limits}), init, each.sidecar
            )
            for each, init in ordered
        )
    except RequestError:
        return None


def split(
    allocated: Sequence[AllocatedDevice], kind: str, containers: Sequence[ContainerDeviceRequest]
) -> dict[str, tuple[int, ...]]:
    """The devices of each container that requests the type, by name, as indexes of `allocated`,
    which is divided from its front.

    `containers`: in the order in which they start.

    Raises SplitError."""
    ordered = tuple(range(len(allocated)))
    requesting = [container for container in containers if kind in container.requests]
    if len(allocated) == 1 or len(requesting) == 1:
        return {container.name: ordered for container in requesting}
    staying = [container for container in requesting if not container.init or container.sidecar]
    free = _FreeAmounts(kind, allocated)
    taken = {}
    for container in sorted(
        staying, key=lambda container: (not container.sidecar, container.requests[kind].shared)
    ):
        taken[container.name] = free.take(container)
    for before, container in enumerate(requesting):
        if container.name not in taken:
            free = _FreeAmounts(kind, allocated)
            for earlier in requesting[:before]:
                if earlier.sidecar:
                    free.take(earlier)
            taken[container.name] = free.take(container)
    return taken


class _FreeAmounts:
    """The free amounts of each device; None for one that is taken as a whole."""

    def __init__(self, kind: str, given: Sequence[AllocatedDevice]) -> None:
        self._kind = kind
        self._given = given
        self._left: dict[int, dict[str, int] | None] = {
            place: dict(each.resources) for place, each in enumerate(given)
        }

    def take(self, container: ContainerDeviceRequest) -> tuple[int, ...]:
        """Raises SplitError."""
        request = container.requests[self._kind]
        fitting = [place for place in self._left if self._fits(place, request)]
        if len(fitting) < request.count:
            raise SplitError(
                f"container {container.name} requests {request.count} of the {len(self._given)}"
                f" {self._kind} devices of its pod, and {len(fitting)} are left"
            )
        for place in fitting[: request.count]:
            left = self._left[place]
            self._left[place] = (
                {name: amount - request.per.get(name, 0) for name, amount in left.items()}
                if left and request.shared
                else None
            )
        return tuple(fitting[: request.count])

    def _fits(self, place: int, request: TypeRequest) -> bool:
        left = self._left[place]
        if left is None or (not request.shared and left != self._given[place].resources):
            return False
        return all(left[name] >= amount for name, amount in request.per.items() if name in left)


class Isolation(msgspec.Struct, frozen=True):
    """Paths of HAMi-core on the host."""

    library: str = ""
    """Empty if there is none."""
    lock_folder: str = ""
    """The folder of its locks, which all its users may write to."""
    problem: str = ""
    """Why HAMi-core can't be used."""


NO_ISOLATION: Final = Isolation()


def isolated(
    visible: Visibility,
    labels: Mapping[str, str],
    cards: Sequence[AllocatedDevice],
    request: TypeRequest | None,
    isolation: Isolation,
) -> Visibility:
    """Adds the values that limit the container to its part of the cards. No change for a container
    with whole cards or a pod that does not request HAMi-core.

    `request`: None if the container has the pod's devices."""
    if labels.get(GPU_ISOLATION_PROVIDER) != _HAMI_CORE or not cards:
        return visible
    per = request.per if request else {}
    parts = [_part(card.resources, per) for card in cards]
    if not any(_is_part(part) for part in parts):
        return visible
    if not isolation.library:
        return Visibility(refused="its pod requests HAMi-core, which this node does not have")
    if isolation.problem:
        return Visibility(refused=f"its pod requests HAMi-core, and {isolation.problem}")
    if not all(part.get(GPU_MEMORY) for part in parts):
        return Visibility(
            refused="its pod requests HAMi-core, and its part of the memory is unknown"
        )
    environment = [("CUDA_DEVICE_MEMORY_LIMIT", str(min(part[GPU_MEMORY] for part in parts)))]
    cores = [part[GPU_CORE] for part in parts if GPU_CORE in part]
    if cores:
        environment.append(("CUDA_DEVICE_SM_LIMIT", str(min(cores))))
    environment.append(("LD_PRELOAD", isolation.library))
    return msgspec.structs.replace(
        visible,
        environment=tuple(environment),
        mounts=(
            Mount(isolation.library, isolation.library),
            Mount(isolation.lock_folder, _LOCK_FOLDER, writable=True),
        ),
    )


def _part(given: Mapping[str, int], per: Mapping[str, int]) -> dict[str, int]:
    """The container's part of one card: its own request, else the allocation of its pod."""
    part = {**given, **{name: per[name] for name in given.keys() & per.keys()}}
    ratio = given.get(GPU_MEMORY_RATIO)
    if GPU_MEMORY in given and ratio and GPU_MEMORY_RATIO in per and GPU_MEMORY not in per:
        part[GPU_MEMORY] = given[GPU_MEMORY] * per[GPU_MEMORY_RATIO] // ratio
    return part


def _is_part(amounts: Mapping[str, int]) -> bool:
    return amounts.get(GPU_MEMORY_RATIO, _WHOLE) < _WHOLE


_WHOLE: Final = 100

_LONGEST: Final = 64

_PERCENTS: Final = (GPU_CORE, GPU_MEMORY_RATIO, *RESOURCE_OF.values())

_PluginHolders = Mapping[str, Mapping[str, str]]
"""By uuid or PCI address of a device: the titles, by uid, of the pods that hold it without an
allocation."""

Holders = Mapping[str, Collection[str]]
"""By uuid or PCI address of a device: the uids of the pods to which a scheduler allocated it."""


class DevicePod(msgspec.Struct, frozen=True):
    """A pod, as far as its devices depend on it."""

    uid: str
    title: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str] = {}
    containers: tuple[ContainerDeviceRequest, ...] | None = None
    """In the order in which they start, None if their requests are unknown."""


class PodVisibility(msgspec.Struct, frozen=True):
    """The visible devices of a pod's containers."""

    each: Visibility
    """For a container that is not in `containers`."""
    containers: dict[str, Visibility] = {}
    """By name."""
    devices: frozenset[str] = frozenset()
    """All devices of the pod by uuid or PCI address; none if they are refused."""
    of_containers: Mapping[str, frozenset[str]] | None = None
    """The devices of each container that has some, by its name; None if every container has all
    devices of the pod."""


class DeviceVisibility(msgspec.Struct, frozen=True):
    """The visible devices of a node's containers."""

    pods: Mapping[str, PodVisibility]
    """The pods by uid to which a scheduler gave devices."""
    node: NodeVisibility


UNDECIDED: Final = DeviceVisibility({}, NodeVisibility())
"""The devices of the node are not known yet; the creation of pods with devices waits."""


def pod_visibility(
    pods: Iterable[DevicePod],
    files: DeviceFiles,
    isolation: Isolation = NO_ISOLATION,
    plugin_holders: _PluginHolders = MappingProxyType({}),
    before: Holders = MappingProxyType({}),
    running: Collection[str] = (),
) -> dict[str, PodVisibility]:
    """The visible devices by uid, for pods with allocated devices, except pods with GPUs that their
    driver has not listed yet. Devices of unknown types and vendors are ignored.

    `pods`: present holders come before those that only claim devices.
    `before`: the holders at the last call; a pod that newly claims some of their devices comes
        last, because a pod's author may change its annotation.
    `running`: uids of all pods with containers."""
    answers: dict[str, PodVisibility] = {}
    resolved: list[tuple[DevicePod, dict[str, list[_MatchedDevice]]]] = []
    for pod in pods:
        try:
            by_type = allocated_devices(pod.annotations)
            managed = {
                kind: sorted(devices, key=_device_order)
                for kind, devices in by_type.items()
                if devices and _is_managed(kind, devices, files)
            }
            if by_type and not managed:
                answers[pod.uid] = PodVisibility(Visibility())
            if not managed or (DeviceType.GPU in managed and files.cards is None):
                continue
            matched = {
                kind: [_matched(kind, device, files) for device in devices]
                for kind, devices in managed.items()
            }
        except (AnnotationError, _RefusedError) as error:
            answers[pod.uid] = PodVisibility(Visibility(refused=str(error)))
            continue
        resolved.append((pod, matched))
    here = frozenset(pod.uid for pod, _ in resolved)
    resolved.sort(key=lambda entry: _claims_anew(entry[0].uid, entry[1], before, here))
    taken: _Taken = {}
    for pod, matched in resolved:
        try:
            _check(pod.uid, matched, taken, plugin_holders, before, running)
        except _RefusedError as error:
            answers[pod.uid] = PodVisibility(Visibility(refused=str(error)))
            continue
        answers[pod.uid] = _allowed(pod, matched, files, isolation)
        for device in chain.from_iterable(matched.values()):
            for key in device.keys:
                taken.setdefault(key, []).append((pod.title, device))
    return answers


def _device_order(device: AllocatedDevice) -> tuple[int, str]:
    return device.minor, device.id


def _is_managed(kind: str, devices: Sequence[AllocatedDevice], files: DeviceFiles) -> bool:
    """Whether the devices are ones that Topolet manages. Other vendors' GPUs have the same resource
    names: ids of this node's cards are never theirs, and on a node without such cards, devices
    without a vendor are theirs."""
    if kind != DeviceType.GPU:
        return kind in RESOURCE_OF
    ids = [device.id for device in devices if device.id]
    if not ids:
        return files.cards is None or bool(files.cards)
    return any(map(is_uuid, ids))


def _claims_anew(
    uid: str, matched: Mapping[str, Iterable[_MatchedDevice]], before: Holders, here: frozenset[str]
) -> bool:
    """Whether the pod claims a device that it did not hold before, but another present pod did."""
    keys = (key for device in chain.from_iterable(matched.values()) for key in device.keys)
    had = (before.get(key, ()) for key in keys)
    return any(uid not in holders and not here.isdisjoint(holders) for holders in had)


def _check(
    uid: str,
    matched: Mapping[str, Iterable[_MatchedDevice]],
    taken: _Taken,
    plugin_holders: _PluginHolders,
    before: Holders,
    running: Collection[str],
) -> None:
    """Refuses a device that does not have enough left. Device plugins do not know the allocations
    of schedulers: a present holder keeps its device against a plugin's pod without containers, and
    against any pod once it has containers itself.

    Raises _RefusedError."""
    for device in chain.from_iterable(matched.values()):
        for key in device.keys:
            had = uid in before.get(key, ())
            for other, title in sorted(plugin_holders.get(key, {}).items()):
                kept = had and (uid in running or other not in running)
                if other != uid and not kept:
                    raise _RefusedError(f"{key} belongs to pod {title}")
            others = taken.get(key, [])
            if not device.fits([other for _, other in others]):
                raise _RefusedError(f"{key} belongs to pod {others[0][0]}")


class _RefusedError(ValueError):
    """Why a pod can't have the devices of its annotation."""


class _MatchedDevice(msgspec.Struct, frozen=True):
    """A device of the annotation on this node."""

    allocated: AllocatedDevice
    keys: tuple[str, ...]
    """The keys of all devices that the pod blocks for others."""
    gpu: VisibleGpu | None = None
    nodes: tuple[DeviceNode, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the pod has the whole device: a function is never shared, and an annotation
        without amounts means all."""
        amounts = self.allocated.resources
        if self.allocated.functions or not any(
            amounts.get(name) for name in (*_PERCENTS, GPU_MEMORY)
        ):
            return True
        return all(amounts[name] >= _WHOLE for name in _PERCENTS if name in amounts)

    def fits(self, others: Sequence[_MatchedDevice]) -> bool:
        """Whether the device has room for this part in addition to these."""
        holders = (self, *others)
        return not others or (
            not any(each.whole for each in holders)
            and all(
                sum(each.allocated.resources.get(name, 0) for each in holders) <= _WHOLE
                for name in _PERCENTS
            )
        )


_Taken = dict[str, list[tuple[str, _MatchedDevice]]]
"""By key, the titles of pods and their devices."""


def _matched(kind: str, device: AllocatedDevice, files: DeviceFiles) -> _MatchedDevice:
    """Raises _RefusedError."""
    title = f"{kind} {device.id[:_LONGEST] or device.minor}"
    if kind == DeviceType.GPU:
        gpu = _gpu(title, device, files.cards or ())
        return _MatchedDevice(device, (gpu.uuid,), gpu)
    other = _other(kind, title, device, files.others)
    if not device.functions:
        alone = _MatchedDevice(device, (other.uuid,), nodes=other.nodes)
        parts = sorted(other.functions) if alone.whole else ()
        return msgspec.structs.replace(alone, keys=(other.uuid, *parts))
    nodes: list[DeviceNode] = []
    for bus in device.functions:
        if bus not in other.functions:
            raise _RefusedError(f"{title} has no virtual function {bus[:_LONGEST]} on this node")
        nodes += other.functions[bus]
    return _MatchedDevice(device, device.functions, nodes=tuple(nodes))


def _gpu(title: str, device: AllocatedDevice, cards: Iterable[CardFiles]) -> VisibleGpu:
    for card in cards:
        for instance in card.instances:
            if device.id and device.id == instance.uuid:
                return instance
        if device.id == card.gpu.uuid if device.id else device.minor == card.minor:
            if card.divided:
                raise _RefusedError(
                    f"{title} is divided, and only its MIG instances can be allocated"
                )
            return card.gpu
    raise _RefusedError(f"{title} is not on this node")


def _other(
    kind: str, title: str, device: AllocatedDevice, others: Iterable[OtherFiles]
) -> OtherFiles:
    for other in others:
        same = device.id == other.uuid if device.id else device.minor == other.minor
        if other.type == kind and same:
            return other
    raise _RefusedError(f"{title} is not on this node")


def _allowed(
    pod: DevicePod,
    found: Mapping[str, Sequence[_MatchedDevice]],
    files: DeviceFiles,
    isolation: Isolation,
) -> PodVisibility:
    keys = _keys(found.values())

    def visible(
        own: Mapping[str, Sequence[_MatchedDevice]], request: TypeRequest | None
    ) -> Visibility:
        cards = own.get(DeviceType.GPU, ())
        gpus = tuple(dict.fromkeys(each.gpu for each in cards if each.gpu is not None))
        nodes = {
            kind: _nodes(own.get(kind, ()), files.common.get(kind, ()))
            for kind in sorted(found)
            if kind != DeviceType.GPU
        }
        seen = Visibility(gpus if DeviceType.GPU in found else None, nodes)
        return isolated(seen, pod.labels, [each.allocated for each in cards], request, isolation)

    requesting = [each for each in pod.containers or () if found.keys() & each.requests.keys()]
    if not requesting:
        return PodVisibility(visible(found, None), {}, keys)
    shares: dict[str, dict[str, list[_MatchedDevice]]] = {each.name: {} for each in requesting}
    try:
        for kind, devices in found.items():
            for name, places in _places(kind, devices, requesting).items():
                shares[name][kind] = [devices[place] for place in places]
    except SplitError as error:
        return PodVisibility(Visibility(refused=str(error)), devices=keys)
    return PodVisibility(
        visible({}, None),
        {
            each.name: visible(shares[each.name], each.requests.get(DeviceType.GPU))
            for each in requesting
        },
        keys,
        {name: _keys(share.values()) for name, share in shares.items()},
    )


def _keys(devices: Iterable[Iterable[_MatchedDevice]]) -> frozenset[str]:
    return frozenset(key for device in chain.from_iterable(devices) for key in device.keys)


def _places(
    kind: str, devices: Sequence[_MatchedDevice], containers: Sequence[ContainerDeviceRequest]
) -> dict[str, tuple[int, ...]]:
    """The devices of each container by name. For devices other than GPUs a hint may have changed
    the number: then each container that requests some gets all."""
    try:
        return split([device.allocated for device in devices], kind, containers)
    except SplitError:
        if kind == DeviceType.GPU:
            raise
        everything = tuple(range(len(devices)))
        return {
            container.name: everything for container in containers if kind in container.requests
        }


def _nodes(
    devices: Sequence[_MatchedDevice], common: Iterable[DeviceNode]
) -> tuple[DeviceNode, ...]:
    if not devices:
        return ()
    return (*common, *(node for each in devices for node in each.nodes))


def holders(now: DeviceVisibility | None, before: Holders, present: Collection[str]) -> Holders:
    """The holders of each device. A pod on the node (`present`, by uid) without a decision keeps
    its devices."""
    decided = now.pods if now else {}
    found: dict[str, set[str]] = {}
    for uid, pod in decided.items():
        for device in pod.devices:
            found.setdefault(device, set()).add(uid)
    for device, uids in before.items():
        for uid in uids:
            if uid not in decided and uid in present:
                found.setdefault(device, set()).add(uid)
    return found


def held(files: DeviceFiles, pods: Mapping[str, PodVisibility]) -> tuple[NodeDevice, ...]:
    """The held devices for the snapshot. An RDMA device is listed without its files, which many
    processes may open; those of its functions are exclusive."""
    holders: dict[str, list[str]] = {}
    for uid, pod in sorted(pods.items()):
        for device in pod.devices:
            holders.setdefault(device, []).append(uid)

    def node_device(
        uuid: str, nodes: Iterable[DeviceNode], index: str = "", card: str = ""
    ) -> NodeDevice:
        paths = tuple(each.path for each in nodes)
        return NodeDevice(uuid, index, card, paths, tuple(holders.get(uuid, ())))

    devices = []
    for each in files.cards or ():
        devices.append(node_device(each.gpu.uuid, each.gpu.nodes, each.gpu.index))
        devices += [
            node_device(
                part.uuid,
                (node for node in part.nodes if node not in each.gpu.nodes),
                part.index,
                each.gpu.uuid,
            )
            for part in each.instances
        ]
    for other in files.others:
        devices.append(
            node_device(other.uuid, () if other.type == DeviceType.RDMA else other.nodes)
        )
        devices += [node_device(bus, nodes) for bus, nodes in sorted(other.functions.items())]
    return tuple(devices)
