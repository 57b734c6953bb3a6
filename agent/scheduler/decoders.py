"""The API server's bytes as the values that are kept of them.

Annotations of pods are read here and dropped: of 100,000 pods they would not fit. Values that many
objects have in common are kept once; nobody changes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from sys import intern
from typing import Final

import msgspec

from agent.allocate.place.holding import Holding, holding_of
from agent.allocate.zoned.pod import ZonedPod, zoned_pod
from agent.model import (
    apipods,
    checkpoints,
    deviceobject,
    node_annotations,
    nodetopology,
    seentopology,
)
from agent.model.annotations import AnnotationError
from agent.model.apipods import ApiPod, PodObject
from agent.model.device_allocation import Holdings, VirtualFunctions
from agent.model.deviceobject import DeviceObject
from agent.model.nodetopology import NodeTopology
from agent.model.objects import ObjectError, decoded
from agent.model.quantities import Quantity, QuantityError, milli, whole
from agent.scheduler.groupname import Group, GroupError, group_of
from agent.scheduler.readings import Agents, NodeReading, PodReading, Unreadable
from agent.scheduler.sharing import Shared, words

log = logging.getLogger(__name__)


def pods(agents: Agents) -> Callable[[bytes], PodReading]:
    """Raises ObjectError."""

    def read(text: bytes) -> PodReading:
        raw = decoded(text, apipods.KIND, _pods)
        pod = apipods.value(raw)
        ready = None
        if agents.include(pod.namespace, pod.labels):
            ready = pod.phase is apipods.Phase.RUNNING and not pod.deleted and _ready(text)
        if not pod.node:
            return PodReading(pod.uid, "", None, ready)
        if pod.terminal:
            zoned, ended = _zoned_of(pod), pod.title
            return PodReading(pod.uid, intern(pod.node), None, ready, zoned=zoned, ended=ended)
        holding = holding_of(pod)
        for fault in holding.faults:
            log.warning("pod %s on node %s: %s", pod.title, pod.node, fault)
        return PodReading(
            pod.uid,
            intern(pod.node),
            _compact(holding),
            ready,
            _labels.of(words(pod.labels)),
            pod.started_at,
            pod.deleted,
            pod.mirror,
            _zoned_of(pod),
            pod.phase is not apipods.Phase.PENDING,
            _group(pod),
        )

    return read


def _group(pod: ApiPod) -> Group | None:
    """None too for what makes no sense: the verbs say so to the pod."""
    try:
        return group_of(pod)
    except GroupError:
        return None


def node(text: bytes) -> NodeReading:
    """Raises ObjectError."""
    raw = decoded(text, "Node", _nodes)
    metadata = raw.metadata
    annotations = metadata.annotations or {}
    return NodeReading(
        intern(metadata.name),
        metadata.uid,
        words(metadata.labels or {}),
        {key: annotations[key] for key in _READ if key in annotations},
        _amounts(metadata.name, raw.status.allocatable or {}),
    )


def topology(text: bytes) -> NodeTopology | Unreadable:
    """Never raises."""
    try:
        read = seentopology.decode(decoded(text, nodetopology.KIND, _objects))
    except ObjectError as error:
        return _unreadable(error)
    return msgspec.structs.replace(read, annotations=words(read.annotations))


def devices(text: bytes) -> DeviceObject | Unreadable:
    """Never raises."""
    try:
        read = deviceobject.read(decoded(text, deviceobject.KIND, _objects))
    except ObjectError as error:
        return _unreadable(error)
    try:
        checkpoints.decode(read.annotations)
    except AnnotationError as error:
        # Nobody knows which devices are held then.
        return _unreadable(ObjectError(deviceobject.KIND, read.name, str(error)))
    found = tuple(
        msgspec.structs.replace(each, resources=_resources.of(each.resources))
        for each in read.devices
    )
    return msgspec.structs.replace(read, devices=found, annotations=words(read.annotations))


class _Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""


class _Conditions(msgspec.Struct, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _WithConditions(msgspec.Struct, frozen=True):
    status: _Conditions = _Conditions()


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _NodeStatus(msgspec.Struct, frozen=True):
    allocatable: dict[str, Quantity] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata
    status: _NodeStatus = _NodeStatus()


_pods: Final = msgspec.json.Decoder(PodObject)
_conditions: Final = msgspec.json.Decoder(_WithConditions)
_nodes: Final = msgspec.json.Decoder(_Node)
_objects: Final = msgspec.json.Decoder(object)
_READ: Final = (
    node_annotations.SYSTEM_QOS,
    node_annotations.RESERVATION,
    node_annotations.CPU_NORMALIZATION_RATIO,
    node_annotations.AMPLIFICATION_RATIO,
)
_labels: Final = Shared[dict[str, str]]()
_zoned: Final = Shared[ZonedPod]()
_asked: Final = Shared[ZonedPod]()
_requests: Final = Shared[dict[str, int]]()
_claimed: Final = Shared[dict[int, dict[str, int]]]()
_resources: Final = Shared[dict[str, int]]()
_NO_DEVICES: Final[Holdings] = {}
_NO_FUNCTIONS: Final[VirtualFunctions] = {}
_NO_IDS: Final[dict[tuple[str, int], str]] = {}


def _ready(text: bytes) -> bool:
    conditions = decoded(text, apipods.KIND, _conditions).status.conditions or ()
    return any(each.type == "Ready" and each.status == "True" for each in conditions)


def _compact(holding: Holding) -> Holding:
    claim = holding.claim
    return msgspec.structs.replace(
        holding,
        claim=msgspec.structs.replace(
            claim, uid=holding.uid, title=holding.title, amounts=_claimed.of(claim.amounts)
        ),
        devices=holding.devices or _NO_DEVICES,
        functions=holding.functions or _NO_FUNCTIONS,
        requests=_requests.of(holding.requests),
        ids=holding.ids or _NO_IDS,
    )


def _zoned_of(pod: ApiPod) -> ZonedPod:
    asked = (pod.kube_class, pod.containers, pod.init_containers, pod.requests, pod.overhead)
    return _asked.made(asked, lambda: _zoned.of(_nameless(zoned_pod(pod))))


def _nameless(pod: ZonedPod) -> ZonedPod:
    parts = tuple(msgspec.structs.replace(each, name="") for each in pod.parts)
    return msgspec.structs.replace(pod, parts=parts)


def _amounts(name: str, raw: dict[str, Quantity]) -> dict[str, int]:
    amounts = {}
    for resource, quantity in raw.items():
        try:
            amounts[intern(resource)] = (milli if resource == "cpu" else whole)(quantity)
        except QuantityError as error:
            where = f"status.allocatable.{resource}"
            raise ObjectError("Node", name, f"{where}: {error}") from None
    return amounts


def _unreadable(error: ObjectError) -> Unreadable:
    log.error("%s", error)
    return Unreadable(str(error))
