"""The devices that a new container sees (docs/devices.md, "Device visibility").

The agent decides which devices these are. `device_changes` makes the changes of the request for a
container with a decision, `as_requested` those for a container that keeps the devices of its
request. Both refuse a request that names another pod's device. The failure policy decides about a
container that can't have its devices, also because the frontend can't make the changes.

Every part of the request that names a device is rewritten, also those that the device plugin does
not use: plugins combine several, and one unchanged name would expose another pod's card. Names of
other vendors and kinds stay. A card never replaces a MIG instance: that would be more than the
container requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec

from agent.hooks import carriers
from agent.hooks.carriers import DEV_NULL, PRELOAD, Carried
from agent.hooks.requests import (
    UNCHANGED,
    CarriedNode,
    Changes,
    Creation,
    DeviceFields,
    Outcomes,
    not_settable,
)
from agent.model.devices import visibility
from agent.model.devices.visibility import (
    MOUNT_ROOT,
    NOTHING_NAMED,
    VISIBLE_DEVICES,
    VOID,
    Mount,
    NodeDevice,
    NodeVisibility,
    Visibility,
    VisibleGpu,
)
from agent.model.settings.frontends import CREATE, DEVICES
from agent.model.verdict import FailureReason, Wait

_ALL: Final = "all"
_SHOWN_CHARACTERS: Final = 64
"""The most characters of a name that a message shows."""
_MAX_NAMES: Final = 1024
"""More GPUs than a node has. The names are bounded because each is compared with each GPU."""


class RefusedError(ValueError):
    """The container can't have the devices of its allocation or of its request; the text is the
    explanation."""

    def __init__(self, text: str, reason: str = FailureReason.NOT_HONORED) -> None:
        """`reason`: one of FailureReason. DEVICE_TAKEN, for a request that names another pod's
        device, fails under every policy."""
        super().__init__(text)
        self.reason = reason


def _taken(text: str) -> RefusedError:
    return RefusedError(text, FailureReason.DEVICE_TAKEN)


def visible_devices(
    creation: Creation,
    carried: Callable[[], Carried],
    visible: Visibility | Wait,
    node: NodeVisibility | None,
    settable: DeviceFields,
    outcomes: Outcomes,
) -> Changes | str:
    """The changes of the request for the devices that its container sees, or why the container must
    not be created. A container that can't have the devices allocated to it fails, or keeps those of
    its request, by policy; it never gets another pod's device. `visible` is Wait if the agent did
    not decide in time."""
    try:
        try:
            return _decided(creation, carried, visible, node, settable, outcomes)
        except RefusedError as error:
            if error.reason == FailureReason.DEVICE_TAKEN:
                raise
            why = f"{creation.pod_title}: {error}"
            if outcomes.fails(CREATE, DEVICES, error.reason, why, creation.fields):
                return why
            return _settable_as_requested(creation, carried, node, settable)
    except RefusedError as error:
        why = f"{creation.pod_title}: {error}"
        outcomes.refused(CREATE, DEVICES, error.reason, why, creation.fields)
        return why


def _decided(
    creation: Creation,
    carried: Callable[[], Carried],
    visible: Visibility | Wait,
    node: NodeVisibility | None,
    settable: DeviceFields,
    outcomes: Outcomes,
) -> Changes:
    if isinstance(visible, Wait):
        timeout = creation.waiting.timeout_seconds
        why = f"no devices after {timeout:g} s: {visible.reason}"
        raise RefusedError(why, FailureReason.TIMEOUT)
    if node is None:
        return UNCHANGED
    found = carried()
    if found.privileged and visible.gpus is not None:
        why = f"{creation.pod_title}: is privileged, and reaches every device"
        outcomes.continued(CREATE, DEVICES, FailureReason.PRIVILEGED, why, creation.fields)
    pod = creation.request.pod
    changes = device_changes(pod.uid, found, visible, node, namespace=pod.namespace)
    if names := not_settable(changes, settable):
        why = f"this frontend can't change {', '.join(names)}"
        raise RefusedError(why, FailureReason.UNSUPPORTED)
    return changes


def _settable_as_requested(
    creation: Creation,
    carried: Callable[[], Carried],
    node: NodeVisibility | None,
    settable: DeviceFields,
) -> Changes:
    """The changes for a container without a decision, as far as the frontend can make them. Raises
    RefusedError."""
    if node is None:
        return UNCHANGED
    pod = creation.request.pod
    changes = as_requested(
        pod.uid, carried(), node, allocated=creation.allocated, namespace=pod.namespace
    )
    return UNCHANGED if not_settable(changes, settable) else changes


def device_changes(
    uid: str,
    carried: Carried,
    visible: Visibility,
    node: NodeVisibility,
    *,
    namespace: str = "",
) -> Changes:
    """The changes of the request after which the container sees the devices in `visible`.
    `namespace`: the pod's. Raises RefusedError."""
    if visible.refused:
        raise RefusedError(visible.refused)
    if visible.gpus is None:
        own = as_requested(uid, carried, node, namespace=namespace)
    else:
        _refuse_annotations_of_pod(uid, carried, visible.gpus, node)
        own = rewritten(carried, visible.gpus, node.cdi_kind)
    removed, added = list(own.removed_nodes), list(own.nodes)
    for device_type, nodes in sorted(visible.nodes.items()):
        present = [
            each for each in carried.nodes if carriers.is_node_of(device_type, each.host_path)
        ]
        removed_of_type, added_of_type = carriers.replaced_nodes(present, nodes, carried.nodes)
        removed += removed_of_type
        added += added_of_type
    _refuse_nodes_of_others(uid, carried, node, removed)
    return msgspec.structs.replace(
        own,
        mounts=(*own.mounts, *visible.mounts),
        environment=(*own.environment, *_environment(carried, visible)),
        nodes=tuple(added),
        removed_nodes=tuple(removed),
    )


def _refuse_annotations_of_pod(
    uid: str, carried: Carried, gpus: Sequence[VisibleGpu], node: NodeVisibility
) -> None:
    """Raises RefusedError if an annotation of the pod names a GPU that the
    container must not see: a runtime may read these annotations, and no frontend can change
    them."""
    names = list(carried.names_of_pod())
    _refuse_names_of_others(uid, names, node, allocated=True)
    for name in names:
        if not any(carriers.refers(name, gpu.uuid, gpu.index) for gpu in gpus):
            short = name[:_SHOWN_CHARACTERS]
            raise RefusedError(f"an annotation of its pod names another GPU: {short}")


def as_requested(
    uid: str,
    carried: Carried,
    node: NodeVisibility,
    *,
    allocated: bool = False,
    namespace: str = "",
) -> Changes:
    """The changes for a container that keeps the devices of its request. Raises RefusedError if the
    request names another pod's device. The node's policy for unrequested GPUs decides the rest.

    `hide`: a container whose request names no device does not get those that its image names, and
        while another pod has a GPU, only one of a namespace for monitoring may name `all`. A
        container that serves the node's devices or is privileged is exempt from both.
    `deny`: as `hide`, but no container is exempt, and none gets the GPUs of the name `all`.
    `leave`: the request stays unchanged.

    `allocated`: the container's pod has an allocation, which the container can't have. No policy
        exempts it, and it must not name `all` while another pod has a GPU.
    `namespace`: the pod's."""
    exempt = not allocated and (
        node.unrequested_gpus == "leave"
        or (
            node.unrequested_gpus == "hide"
            and (carried.privileged or carriers.serves(carried.serving, node.kubelet_dir))
        )
    )
    names = list(dict.fromkeys(carried.names()))
    if len(names) > _MAX_NAMES:
        raise _taken(f"its request names {len(names)} GPUs")
    _refuse_names_of_others(uid, names, node, allocated=allocated)
    _refuse_nodes_of_others(uid, carried, node)
    if exempt:
        return UNCHANGED
    if node.unrequested_gpus == "hide" and namespace not in node.monitors:
        _refuse_all(uid, [*names, *carried.names_of_pod()], node)
    denied = node.unrequested_gpus == "deny" and _ALL in map(str.lower, names)
    if denied and any(map(carriers.names_all, carried.names_of_pod())):
        raise _taken("an annotation of its pod names all GPUs")
    names_devices = bool(names or carried.environment) or any(
        carriers.is_card_node(each.host_path) for each in carried.nodes
    )
    return rewritten(carried, ()) if denied or not names_devices else UNCHANGED


def _refuse_names_of_others(
    uid: str, names: Iterable[str], node: NodeVisibility, *, allocated: bool
) -> None:
    """Raises RefusedError for the name of another pod's device. While another pod has a GPU, also
    for a name that may mean any GPU: a name that is not understood, or a number while the number of
    a GPU of another pod is not known. `allocated`: the pod has an allocation, so that it must not
    name `all`."""
    others = list(_others(node, uid))
    gpus = [each for each in others if each.is_gpu]
    unnumbered = [each for each in gpus if not each.index]
    owned = {
        each.uuid: device for device in reversed(others) for each in _related(device, node.held)
    }
    for name in names if others else ():
        title = f"{name[:_SHOWN_CHARACTERS]} of its request"
        taken = [owned[uuid] for uuid in _named(name, node.held) if uuid in owned]
        if allocated and name.lower() == _ALL:
            taken = gpus
        if taken:
            raise _taken(f"{title} is {taken[0].uuid}, another pod's")
        if gpus and not carriers.is_understood(name):
            raise _taken(f"{title} may be {gpus[0].uuid}, another pod's: write its UUID")
        if unnumbered and carriers.is_number(name):
            raise _taken(
                f"{title} may be {unnumbered[0].uuid}, another pod's, whose number is not known"
            )


def _refuse_all(uid: str, names: Iterable[str], node: NodeVisibility) -> None:
    """Raises RefusedError for the name `all` while another pod has a GPU."""
    taken = next((each.uuid for each in _others(node, uid) if each.is_gpu), None)
    if taken is not None and _ALL in map(str.lower, names):
        raise _taken(
            f"all GPUs of its request include {taken}, another pod's: only pods of the namespaces "
            "of --gpu-monitor-namespaces may name all"
        )


def _named(name: str, held: Sequence[NodeDevice]) -> list[str]:
    """The UUIDs of the devices that the name means; of the card for an instance that is not
    known."""
    found = [each.uuid for each in held if carriers.refers(name, each.uuid, each.index)]
    card = "" if found else carriers.card_of(name)
    return _named(card, held) if card else found


def _others(node: NodeVisibility, uid: str) -> Iterator[NodeDevice]:
    """The devices that only other pods hold."""
    return (each for each in node.held if each.holders and uid not in each.holders)


def _related(device: NodeDevice, held: Iterable[NodeDevice]) -> list[NodeDevice]:
    """The device, the card that it is an instance of, and its own instances."""
    return [
        each for each in held if device.uuid in (each.uuid, each.card) or each.uuid == device.card
    ]


def _refuse_nodes_of_others(
    uid: str, carried: Carried, node: NodeVisibility, removed: Collection[CarriedNode] = ()
) -> None:
    """Raises RefusedError if the request has the device node of another pod's device, or a folder
    with it, from which a runtime takes every node. `removed` nodes don't count. Also for the CDI
    name of a ResourceClaim on such a card, and, while another pod has a GPU, for a CDI name that
    may mean any card. The node of a card gives no access to its MIG instances, which have their own
    nodes."""
    paths = {each.host_path: each.host_path for each in carried.nodes if each not in removed}
    paths |= {path: name for name, path in carried.claimed()}
    for device in _others(node, uid) if paths else ():
        if device.is_gpu and (name := paths.get("")) is not None:
            raise _taken(
                f"{name[:_SHOWN_CHARACTERS]} of its request may be {device.uuid}, another pod's"
            )
        parts = (each for each in node.held if device.uuid in (each.uuid, each.card))
        for path in chain.from_iterable(each.nodes for each in parts):
            for place in _with_folders(path):
                if (name := paths.get(place)) is not None:
                    raise _taken(f"{name} of its request is {device.uuid}, another pod's")


def _with_folders(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _environment(carried: Carried, visible: Visibility) -> tuple[tuple[str, str], ...]:
    """The variables that the devices need. The request's own preloaded libraries stay, after
    those."""
    return tuple(
        (name, f"{value}:{carried.preload}" if name == PRELOAD and carried.preload else value)
        for name, value in visible.environment
    )


def rewritten(carried: Carried, gpus: Sequence[VisibleGpu], cdi_kind: str = "") -> Changes:
    """The changes after which the request names these GPUs and no others. A request without names
    gets CDI names of the kind `cdi_kind`; if that is empty, the environment names the GPUs. Raises
    RefusedError."""
    if any(not gpu.is_mig for gpu in gpus):
        _refuse_requests_of_instances(carried, gpus)
    cdi_devices = _in_list(carried.cdi_devices, gpus)
    annotations = tuple(_in_annotations(carried.annotations, gpus))
    if gpus and cdi_kind and not any(carried.names()):
        cdi_devices = [*cdi_devices, *(f"{cdi_kind}={gpu.uuid}" for gpu in gpus)]
    by_cdi = any(map(carriers.names_gpu, cdi_devices)) or any(
        carriers.names_gpu(name)
        for _, value in annotations
        if value
        for name in visibility.split(value)
    )
    mounts = _mounts(carried.mounts, gpus)
    value = _variable(carried, gpus, by_mounts=bool(mounts), by_cdi=by_cdi)
    removed_nodes, nodes = _nodes(carried.nodes, gpus)
    return Changes(
        mounts=tuple(Mount(DEV_NULL, each) for each in mounts if each not in carried.mounts),
        environment=() if carried.environment == (value,) else ((VISIBLE_DEVICES, value),),
        cdi_devices=tuple(each for each in cdi_devices if each not in carried.cdi_devices),
        nodes=nodes,
        annotations=tuple(each for each in annotations if each not in carried.annotations),
        removed_mounts=tuple(
            each
            for each in carried.mounts
            if carriers.mounted_name(each) is not None and each not in mounts
        ),
        removed_cdi_devices=tuple(each for each in carried.cdi_devices if each not in cdi_devices),
        removed_nodes=removed_nodes,
    )


def _refuse_requests_of_instances(carried: Carried, gpus: Sequence[VisibleGpu]) -> None:
    """Raises RefusedError if the request names a MIG instance that is not among the GPUs."""
    for name in carried.names():
        if carriers.is_mig_name(name) and not any(
            carriers.refers(name, gpu.uuid, gpu.index) for gpu in gpus
        ):
            raise RefusedError(f"it requests MIG instance {name}, but was allocated a card")
    own_paths = {node.path for gpu in gpus for node in gpu.nodes}
    for node in carried.nodes:
        if carriers.is_instance_node(node.host_path) and node.host_path not in own_paths:
            raise RefusedError(
                f"it requests a MIG instance's {node.host_path}, but was allocated a card"
            )


def _in_list(names: Sequence[str], gpus: Sequence[VisibleGpu]) -> list[str]:
    """The list of CDI names with the GPUs in place of its first GPU, and without its other GPUs.
    Raises RefusedError."""
    kinds = {name: visibility.kind_and_name(name)[0] for name in names if carriers.names_gpu(name)}
    first = next((name for name, kind in kinds.items() if kind), None)
    kind = kinds[first] if first is not None else ""
    like = [name for name, of_name in kinds.items() if of_name == kind]
    chosen = [f"{kind}={name}" for name in _names_like(like, gpus)] if kind else []
    kept = [
        chosen if name == first else [name]
        for name in dict.fromkeys(names)
        if name == first or name not in kinds
    ]
    return list(chain.from_iterable(kept))


def _in_annotations(
    annotations: Iterable[tuple[str, str]], gpus: Sequence[VisibleGpu]
) -> Iterator[tuple[str, str | None]]:
    """The annotations with the GPUs in place of those that they name; None for an annotation that
    names no device then. Raises RefusedError."""
    for key, value in annotations:
        names = visibility.split(value)
        if any(map(carriers.names_gpu, names)):
            yield key, ",".join(_in_list(names, gpus)) or None
        else:
            yield key, value


def _names_like(present: Iterable[str], gpus: Iterable[VisibleGpu]) -> Iterator[str]:
    """The GPUs' names in the form of those that the request has: a CDI specification may have one
    form only. Raises RefusedError."""
    names = [name.rpartition("=")[2] for name in present]
    for gpu in gpus:
        name = carriers.name_like(names, gpu)
        if name is None:
            raise RefusedError(
                f"it names GPUs by number, but the number of {gpu.uuid} is not known"
            )
        yield name


def _mounts(mounts: Sequence[str], gpus: Sequence[VisibleGpu]) -> list[str]:
    """The paths at which /dev/null is mounted to name the GPUs; none for a request without such
    mounts. Raises RefusedError."""
    present = [name for each in mounts if (name := carriers.mounted_name(each)) is not None]
    if not present:
        return []
    kind, _ = visibility.kind_and_name(present[0])
    if not kind:
        return [carriers.mount_path(gpu.uuid) for gpu in gpus]
    return [carriers.mount_path(f"{kind}={name}") for name in _names_like(present, gpus)]


def _variable(
    carried: Carried, gpus: Sequence[VisibleGpu], *, by_mounts: bool, by_cdi: bool
) -> str:
    """The value of NVIDIA_VISIBLE_DEVICES. It is always set, because the image may set another
    value. `by_mounts`, `by_cdi`: whether mounts or CDI names already name the GPUs. Raises
    RefusedError."""
    present = carried.environment[-1] if carried.environment else None
    if by_mounts:
        return MOUNT_ROOT
    names_some = present is not None and present not in NOTHING_NAMED and present != MOUNT_ROOT
    names = visibility.split(present or "") if names_some else []
    qualified = [name for name in names if visibility.kind_and_name(name)[0]]
    others = [name for name in qualified if not carriers.names_gpu(name)]
    if not gpus:
        nothing = present if present == "none" else VOID
        return ",".join(others) or nothing
    if by_cdi and not names_some:
        return present if present in NOTHING_NAMED and present else VOID
    if len(others) < len(qualified):
        return ",".join(_in_list(qualified, gpus))
    return ",".join([gpu.uuid for gpu in gpus] + others)


def _nodes(
    nodes: Sequence[CarriedNode], gpus: Sequence[VisibleGpu]
) -> tuple[tuple[CarriedNode, ...], tuple[CarriedNode, ...]]:
    """The removed and the added nodes; none for a request without nodes of cards. Raises
    RefusedError."""
    present = [each for each in nodes if carriers.is_card_node(each.host_path)]
    if not present:
        return (), ()
    for gpu in gpus:
        if not gpu.nodes:
            raise RefusedError(
                f"it requests device nodes, but the nodes of {gpu.uuid} are not known"
            )
    return carriers.replaced_nodes(present, [node for gpu in gpus for node in gpu.nodes], nodes)
