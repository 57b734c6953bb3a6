"""Replaces the GPUs of a request in every carrier that it has (docs/devices.md, "Who sees what").
Names of other vendors and kinds stay. A card never replaces a MIG instance: that would be more than
the request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from agent.hooks import carriers
from agent.hooks.carriers import DEV_NULL, Carried
from agent.hooks.changes import CarriedNode as Node
from agent.hooks.changes import Changes
from agent.model import gpunames
from agent.model.gpunames import MOUNT_ROOT, NOTHING_NAMED, VISIBLE_DEVICES, VOID
from agent.model.visible import DeviceNode, Mount, VisibleGpu


class UnhonouredError(ValueError):
    """The container can't have its allocation; the text is the explanation, `reason` a short
    name."""

    reason = "unhonoured"


def rewritten(carried: Carried, gpus: Sequence[VisibleGpu], cdi_kind: str = "") -> Changes:
    """The changes after which the request asks for these GPUs and no others. `cdi_kind`: names them
    for a request without names; empty: in the environment. Raises UnhonouredError."""
    if any(not gpu.is_mig for gpu in gpus):
        for name in carried.names():
            if carriers.is_mig_name(name) and not any(
                carriers.refers(name, gpu.uuid, gpu.index) for gpu in gpus
            ):
                raise UnhonouredError(f"it asks for MIG instance {name}, and was allocated a card")
        own_paths = {node.path for gpu in gpus for node in gpu.nodes}
        for node in carried.nodes:
            if carriers.is_instance_node(node.host_path) and node.host_path not in own_paths:
                raise UnhonouredError(
                    f"it asks for a MIG instance's {node.host_path}, and was allocated a card"
                )
    cdi_devices = _in_list(carried.cdi_devices, gpus)
    annotations = tuple(_in_annotations(carried.annotations, gpus))
    if gpus and cdi_kind and not any(carried.names()):
        cdi_devices = [*cdi_devices, *(f"{cdi_kind}={gpu.uuid}" for gpu in gpus)]
    by_cdi = any(map(_is_gpu, cdi_devices)) or any(
        _is_gpu(name) for _, value in annotations if value for name in gpunames.split(value)
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


def _is_gpu(name: str) -> bool:
    kind, equals, _ = name.rpartition("=")
    return bool(equals) and carriers.is_gpu_kind(kind)


def _in_list(names: Sequence[str], gpus: Sequence[VisibleGpu]) -> list[str]:
    """Of qualified names those of other devices, with the GPUs in place of the first GPU."""
    present = [name for name in names if _is_gpu(name)]
    if not present:
        return list(names)
    kind = present[0].rpartition("=")[0]
    like = [name for name in present if name.startswith(f"{kind}=")]
    chosen = [f"{kind}={name}" for name in _written(gpus, like)]
    kept = [
        chosen if name == present[0] else [name]
        for name in dict.fromkeys(names)
        if name == present[0] or not _is_gpu(name)
    ]
    return list(chain.from_iterable(kept))


def _in_annotations(
    annotations: Iterable[tuple[str, str]], gpus: Sequence[VisibleGpu]
) -> Iterator[tuple[str, str | None]]:
    """None when no name is left."""
    for key, value in annotations:
        names = gpunames.split(value)
        yield (
            (key, ",".join(_in_list(names, gpus)) or None)
            if any(map(_is_gpu, names))
            else (
                key,
                value,
            )
        )


def _written(gpus: Iterable[VisibleGpu], present: Iterable[str]) -> Iterator[str]:
    """Names in the form of the request: a CDI specification may have one form only."""
    forms = [name.rpartition("=")[2] for name in present]
    for gpu in gpus:
        name = carriers.written(gpu, forms)
        if name is None:
            raise UnhonouredError(f"it names GPUs by number, and that of {gpu.uuid} is not known")
        yield name


def _mounts(mounts: Sequence[str], gpus: Sequence[VisibleGpu]) -> list[str]:
    """Where to mount /dev/null for the GPUs; nowhere for a request without such mounts."""
    present = [name for each in mounts if (name := carriers.mounted_name(each)) is not None]
    if not present:
        return []
    kind = present[0].rpartition("=")[0]
    if not kind:
        return [carriers.mount_path(gpu.uuid) for gpu in gpus]
    return [carriers.mount_path(f"{kind}={name}") for name in _written(gpus, present)]


def _variable(
    carried: Carried, gpus: Sequence[VisibleGpu], *, by_mounts: bool, by_cdi: bool
) -> str:
    """The value of NVIDIA_VISIBLE_DEVICES; the image may have another one."""
    present = carried.environment[-1] if carried.environment else None
    if by_mounts:
        return MOUNT_ROOT
    names_some = present is not None and present not in NOTHING_NAMED and present != MOUNT_ROOT
    names = gpunames.split(present or "") if names_some else []
    qualified = [name for name in names if "=" in name]
    others = [name for name in qualified if not _is_gpu(name)]
    if not gpus:
        nothing = present if present == "none" else VOID
        return ",".join(others) or nothing
    if by_cdi and not names_some:
        return present if present in NOTHING_NAMED and present else VOID
    if any(map(_is_gpu, names)):
        return ",".join(_in_list(qualified, gpus))
    return ",".join([gpu.uuid for gpu in gpus] + others)


def _nodes(
    nodes: Sequence[Node], gpus: Sequence[VisibleGpu]
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The removed and the added nodes, for a request that asks for nodes of cards."""
    present = [each for each in nodes if carriers.is_card_node(each.host_path)]
    if not present:
        return (), ()
    for gpu in gpus:
        if not gpu.nodes:
            raise UnhonouredError(
                f"it asks for device nodes, and those of {gpu.uuid} are not known"
            )
    return replaced(present, [node for gpu in gpus for node in gpu.nodes], nodes)


def replaced(
    present: Sequence[Node], wanted: Sequence[DeviceNode], nodes: Sequence[Node]
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The removed ones of the `present` nodes, and the added nodes that the request (`nodes`)
    lacks, with the permissions that it asks for."""
    paths = {each.path for each in wanted}
    there = {each.host_path for each in nodes}
    permissions = present[0].permissions if present else "rw"
    return (
        tuple(each for each in present if each.host_path not in paths),
        tuple(
            Node(each.path, each.path, permissions, each.major, each.minor)
            for each in dict.fromkeys(wanted)
            if each.path not in there
        ),
    )
