"""Devices and CPUs that a device plugin or a DRA driver gave to a container, as reported by the
PodResources API of the kubelet, by the annotations of a Device object, and by the container
itself or the plugin's answer: environment, mounts, CDI names and device nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from agent.model import wire
from agent.model.devices import holding
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.model.devices.visibility import (
    MOUNT_ROOT,
    NOTHING_NAMED,
    VISIBLE_DEVICES,
    is_cdi_annotation,
    kind_and_name,
    mounted,
    split,
)
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.pod_resources import PodName, PodResources

_CPUSET_PREFIX: Final = "DRA_CPUSET_"
"""The prefix of a claim's uid."""
CPU_DRIVER: Final = "dra.cpu"
_MAX_NAMES: Final = 1024
"""More names than a node has devices; runtimes do not create containers with unknown devices."""
_MAX_CHARACTERS: Final = 64 << 10
"""The most characters of all names of a container from one source, which are kept while it runs."""


class Carriers(msgspec.Struct, frozen=True):
    """What a container shows of its devices."""

    environment: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    """The CDI names with which the kubelet requested the container."""
    annotations: tuple[tuple[str, str], ...] = ()
    """The annotations in the container's spec, where a runtime may put the pod's."""
    mounts: tuple[str, ...] = ()
    """Paths in the container."""
    nodes: tuple[str, ...] = ()
    """Paths on the host."""
    privileged: bool = False
    """The container has all nodes, so they do not show which devices it got."""


def of_carriers(
    uid: str, container: str, carriers: Carriers, answer: HoldingSource | None = None
) -> tuple[ReportedDevices, ...]:
    """One value for each source, resource, driver or CDI kind, and claim on CPUs. If a variable is
    set twice, the last value counts.

    `answer`: the source of all values except those by device nodes, if it is not the container."""
    named: dict[tuple[HoldingSource, str], list[str]] = {}
    carried = (
        (answer or HoldingSource.CONTAINER, _qualified_names(carriers.cdi_devices)),
        (answer or HoldingSource.ENVIRONMENT, _named(carriers)),
    )
    for source, names in carried:
        for resource, name in _bounded(dict.fromkeys(names)):
            named.setdefault((source, resource), []).append(name)
    written = answer or HoldingSource.ENVIRONMENT
    claims = (
        (key.removeprefix(_CPUSET_PREFIX), value)
        for key, value in dict(carriers.environment).items()
        if key.startswith(_CPUSET_PREFIX)
    )
    reported = [
        *(
            ReportedDevices(uid, container, resource, tuple(names), source)
            for (source, resource), names in named.items()
        ),
        *(
            ReportedDevices(uid, container, CPU_DRIVER, (value,), written, claim)
            for claim, value in _bounded(claims)
        ),
    ]
    if carriers.nodes and not carriers.privileged:
        named_nodes = (("", path) for path in carriers.nodes if path.startswith("/dev/"))
        nodes = tuple(path for _, path in _bounded(named_nodes))
        reported.append(ReportedDevices(uid, container, "", nodes, HoldingSource.NODE))
    return tuple(reported)


def _bounded(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    left = _MAX_CHARACTERS
    for each in islice(pairs, _MAX_NAMES):
        left -= len(each[0]) + len(each[1])
        if left < 0:
            return
        yield each


def _named(carriers: Carriers) -> Iterator[tuple[str, str]]:
    """Resource or CDI kind, and name; the resource is "" when it is not given."""
    visible = dict(carriers.environment).get(VISIBLE_DEVICES, "")
    named = [name for path in carriers.mounts if (name := mounted(path))]
    if visible not in NOTHING_NAMED and visible != MOUNT_ROOT:
        named = split(visible) + named
    yield from map(kind_and_name, named)
    for key, value in carriers.annotations:
        if is_cdi_annotation(key):
            yield from _qualified_names(split(value))


def _qualified_names(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """CDI names; the runtime does not accept one without a kind."""
    return (qualified for qualified in map(kind_and_name, names) if qualified[0])


_ENVIRONMENT, _MOUNTS, _DEVICES, _ANNOTATIONS, _CDI_DEVICES = 1, 2, 3, 4, 5
"""Fields of ContainerAllocateResponse (kubelet: pkg/apis/deviceplugin/v1beta1/api.proto)."""
_CONTAINER_PATH, _HOST_PATH, _NAME = 1, 2, 1


def of_answer(uid: str, container: str, answer: bytes | None) -> tuple[ReportedDevices, ...]:
    """The devices of a device plugin's ContainerAllocateResponse: it names devices whose ids have
    no meaning. Raises WireError for bytes that are not such a message."""
    return of_carriers(uid, container, answered(answer or b""), HoldingSource.ANSWER)


def answered(answer: bytes) -> Carriers:
    """Raises WireError for bytes that are not a ContainerAllocateResponse."""
    named = wire.payloads
    return Carriers(
        environment=tuple(wire.string_map(answer, _ENVIRONMENT).items()),
        cdi_devices=tuple(wire.text(each, _NAME) for each in named(answer, _CDI_DEVICES)),
        annotations=tuple(wire.string_map(answer, _ANNOTATIONS).items()),
        mounts=tuple(wire.text(each, _CONTAINER_PATH) for each in named(answer, _MOUNTS)),
        nodes=tuple(wire.text(each, _HOST_PATH) for each in named(answer, _DEVICES)),
    )


def of_device_object(annotations: Mapping[str, str]) -> tuple[ReportedDevices, ...]:
    """What the annotations of a Device object list. Raises AnnotationError."""
    found: list[ReportedDevices] = []
    for key in (holding.DEVICES_CHECKPOINTS, holding.GPU_CHECKPOINTS):
        for each in holding.decode(annotations, key):
            uid, container, ids = each.pod_uid, each.container_name, each.device_ids or ()
            source = HoldingSource.CHECKPOINT
            found.append(ReportedDevices(uid, container, each.resource_name, ids, source))
            try:
                found += of_answer(uid, container, each.answer)
            except wire.WireError as error:
                raise AnnotationError(key, f"pod {uid}, {container}: allocResp: {error}") from None
    return tuple(found)


def of_pod_resources(
    pods: Iterable[PodResources], uids: Mapping[PodName, str]
) -> tuple[ReportedDevices, ...]:
    """The devices that the kubelet reports.

    `uids`: the uids of the pods on the node, which the PodResources API does not report. A pod
        without an entry has ended, or appears in the next pass."""
    reported: list[ReportedDevices] = []
    for pod in pods:
        uid = uids.get(pod.key)
        if uid is None:
            continue
        for container in pod.containers:
            by_resource: dict[str, list[str]] = {}
            for device in container.devices:
                by_resource.setdefault(device.resource, []).append(device.id)
            reported += [
                ReportedDevices(
                    uid, container.name, resource, tuple(names), HoldingSource.CHECKPOINT
                )
                for resource, names in by_resource.items()
            ]
            reported += [
                ReportedDevices(
                    uid,
                    container.name,
                    claimed.driver,
                    (claimed.device,),
                    HoldingSource.CLAIM,
                    f"{claim.namespace}/{claim.name}",
                    claimed.share or "",
                    claimed.cdi,
                )
                for claim in container.claims
                for claimed in claim.devices
            ]
    return tuple(reported)
