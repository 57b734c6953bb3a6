"""The extender API of kube-scheduler (k8s.io/kube-scheduler/extender/v1): its types, and the HTTP
routes of the verbs filter, prioritize, preempt and bind, with the health and metrics pages.

The JSON has the names of Go fields, without a version. A caller that is not nodeCacheCapable sends
and expects whole Nodes in place of names, and whole pods in place of the victims' UIDs.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, Protocol, TypeVar

import msgspec

from agent.http.requests import TEXT, BadRequestError, Reply, Route, text_reply
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.objects import ObjectError, ObjectIdentity
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod, PodObject
from agent.telemetry.schedulermetrics import SchedulerMetrics

log = logging.getLogger(__name__)
Value = TypeVar("Value")


class ExtenderArgs(msgspec.Struct, frozen=True):
    """The arguments of filter and prioritize. `items` are the Nodes by name, if the caller sent
    whole Nodes."""

    pod: ApiPod
    node_names: Sequence[str]
    items: Mapping[str, msgspec.Raw] | None = None


class ExtenderFilterResult(msgspec.Struct, frozen=True, rename="pascal"):
    """Reasons are by node. Eviction may help on `failed_nodes`, not on the other nodes."""

    node_names: Sequence[str] = ()
    failed_nodes: Mapping[str, str] = {}
    failed_and_unresolvable_nodes: Mapping[str, str] = {}
    error: str = ""


class MetaPod(msgspec.Struct, frozen=True):
    """A victim."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True):
    """The victims on one node, and the number of disruption budgets that they violate."""

    pods: tuple[MetaPod, ...] = msgspec.field(name="Pods", default=())
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True):
    """`victims` are by node. `constrained`: the pod has requirements other than resources (host
    ports, volumes, other pods), for which kube-scheduler may have selected the victims."""

    pod: ApiPod
    victims: Mapping[str, MetaVictims]
    constrained: bool = False


class ExtenderPreemptionResult(msgspec.Struct, frozen=True):
    """The remaining candidate nodes, with their victims."""

    victims: Mapping[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default={})


class ExtenderBindingArgs(msgspec.Struct, frozen=True, rename="pascal"):
    """A pod and its node."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class ExtenderBindingResult(msgspec.Struct, frozen=True, rename="pascal"):
    """`error` is empty for a pod that is bound."""

    error: str = ""


def extender_args(body: bytes) -> ExtenderArgs:
    """Raises BadRequestError, which names the field, like all decoders here."""
    raw = _decoded("ExtenderArgs", _ARGS, body)
    if raw.node_names is not None:
        return ExtenderArgs(_pod("ExtenderArgs", raw.pod), raw.node_names)
    if raw.nodes is None:
        raise BadRequestError("ExtenderArgs: NodeNames and Nodes: are missing")
    items = {}
    for index, item in enumerate(raw.nodes.items or ()):
        name = _decoded(f"ExtenderArgs: Nodes.items[{index}]", _NAMED, item).metadata.name
        items[name] = item.copy()
    return ExtenderArgs(_pod("ExtenderArgs", raw.pod), tuple(items), items)


def preemption_args(body: bytes) -> ExtenderPreemptionArgs:
    """Decodes both forms of victims, UIDs and whole pods."""
    raw = _decoded("ExtenderPreemptionArgs", _PREEMPTION, body)
    victims: Mapping[str, MetaVictims]
    if raw.meta is not None:
        victims = {
            node: MetaVictims(tuple(each.pods or ()), each.violations)
            for node, each in raw.meta.items()
        }
    elif raw.whole is not None:
        victims = {
            node: MetaVictims(
                tuple(MetaPod(pod.metadata.uid) for pod in each.pods or ()), each.violations
            )
            for node, each in raw.whole.items()
        }
    else:
        raise BadRequestError(
            "ExtenderPreemptionArgs: NodeNameToMetaVictims and NodeNameToVictims: are missing"
        )
    pod = _decoded("ExtenderPreemptionArgs: Pod", _POD, raw.pod)
    constraints = _decoded("ExtenderPreemptionArgs: Pod", _CONSTRAINTS, raw.pod)
    return ExtenderPreemptionArgs(_pod("ExtenderPreemptionArgs", pod), victims, constraints.any())


def binding_args(body: bytes) -> ExtenderBindingArgs:
    """Rejects names that no object can have, since they become part of request paths."""
    found = _decoded("ExtenderBindingArgs", _BINDING, body)
    for field, name in (
        ("PodName", found.pod_name),
        ("PodNamespace", found.pod_namespace),
        ("Node", found.node),
    ):
        if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
            raise BadRequestError(f"ExtenderBindingArgs: {field}: {name[:80]!r} is not a name")
    if not found.pod_uid:
        raise BadRequestError("ExtenderBindingArgs: PodUID: is empty")
    return found


def filter_answer(args: ExtenderArgs, result: ExtenderFilterResult) -> bytes:
    """Encodes the result, with whole Nodes if the caller sent whole Nodes."""
    if args.items is None:
        return _encoder.encode(result)
    items = [args.items[name] for name in result.node_names if name in args.items]
    return _encoder.encode(
        _WholeResult(
            _List(items), result.failed_nodes, result.failed_and_unresolvable_nodes, result.error
        )
    )


def encode(result: object) -> bytes:
    """Encodes the result of any other verb."""
    return _encoder.encode(result)


def _decoded(what: str, decoder: msgspec.json.Decoder[Value], body: bytes | msgspec.Raw) -> Value:
    try:
        return bounds.decode(decoder, bytes(body))
    except JsonError as error:
        raise BadRequestError(f"{what}: {error}") from None


def _pod(what: str, raw: PodObject) -> ApiPod:
    try:
        return apiobjects.value(raw)
    except ObjectError as error:
        raise BadRequestError(f"{what}: {error}") from None


class _Named(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity


class _Nodes(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


class _List(msgspec.Struct, frozen=True):
    items: Sequence[msgspec.Raw]
    metadata: Mapping[str, str] = {}


class _WholeResult(msgspec.Struct, frozen=True, rename="pascal"):
    nodes: _List
    failed_nodes: Mapping[str, str]
    failed_and_unresolvable_nodes: Mapping[str, str]
    error: str


class _Args(msgspec.Struct, frozen=True, rename="pascal"):
    pod: PodObject
    node_names: list[str] | None = None
    nodes: _Nodes | None = None


class _Meta(msgspec.Struct, frozen=True):
    pods: tuple[MetaPod, ...] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _Victims(msgspec.Struct, frozen=True):
    pods: tuple[_Named, ...] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _Preemption(msgspec.Struct, frozen=True):
    pod: msgspec.Raw = msgspec.field(name="Pod")
    whole: dict[str, _Victims] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta: dict[str, _Meta] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class Constraints(msgspec.Struct, frozen=True):
    """The requirements of a pod to a node other than resources, decoded from the pod's JSON."""

    spec: _Spec | None = None

    def any(self) -> bool:
        """Whether the pod has host ports, volumes that not every node provides, affinity to pods,
        topology spread constraints, or resource claims."""
        spec = self.spec or _Spec()
        containers = (*(spec.containers or ()), *(spec.init_containers or ()))
        affinity = spec.affinity or _Affinity()
        return bool(
            affinity.pod_affinity
            or affinity.pod_anti_affinity
            or spec.topology_spread_constraints
            or spec.resource_claims
            or any(port.host_port for each in containers for port in each.ports or ())
            or any(not _LOCAL & each.keys() for each in spec.volumes or ())
        )


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    host_port: int = 0


class _Ports(msgspec.Struct, frozen=True):
    ports: tuple[_Port, ...] | None = None


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    pod_affinity: object = None
    pod_anti_affinity: object = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    affinity: _Affinity | None = None
    containers: tuple[_Ports, ...] | None = None
    init_containers: tuple[_Ports, ...] | None = None
    topology_spread_constraints: tuple[object, ...] | None = None
    resource_claims: tuple[object, ...] | None = None
    volumes: tuple[dict[str, object], ...] | None = None


# Volumes that every node provides.
_LOCAL: Final = frozenset(
    ("configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret")
)
_POD: Final = msgspec.json.Decoder(PodObject)
_CONSTRAINTS: Final = msgspec.json.Decoder(Constraints)
_encoder: Final = msgspec.json.Encoder()
_ARGS: Final = msgspec.json.Decoder(_Args)
_NAMED: Final = msgspec.json.Decoder(_Named)
_PREEMPTION: Final = msgspec.json.Decoder(_Preemption)
_BINDING: Final = msgspec.json.Decoder(ExtenderBindingArgs)
_LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)


class Extender(Protocol):
    """The handlers of the four verbs, called from several threads at once. They report failures in
    the result; an exception is a bug."""

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult: ...

    def prioritize(self, args: ExtenderArgs) -> msgspec.Raw:
        """The list of HostPriority as JSON."""
        ...

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult: ...

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult: ...


class RequestResult(StrEnum):
    """The outcome of a request: a result, a result with `Error`, an invalid body, no decision
    because this process can't decide now, an exception."""

    ANSWERED = "answered"
    ERROR = "error"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    FAULT = "fault"


VERBS: Final = ("filter", "prioritize", "preempt", "bind")
UnavailableReason = Callable[[], str | None]
"""Returns why this process can't decide now; None if it can."""

OVERDUE_SECONDS: Final = 5.0
"""kube-scheduler then gives up a request (`httpTimeout` of KubeSchedulerConfiguration)."""


class RequestsInFlight:
    """The requests that are being answered. A process that computes longer than kube-scheduler
    waits is not healthy: another one has to lead. A bind is not counted, because it waits for the
    API server. Safe for many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[int, tuple[float, str]] = {}
        self._numbers = itertools.count()

    @contextmanager
    def answering(self, verb: str) -> Iterator[None]:
        number = next(self._numbers)
        if verb != "bind":
            self._began[number] = self._clock(), verb
        try:
            yield
        finally:
            self._began.pop(number, None)

    def overdue(self) -> str | None:
        """Names the request that has taken too long; None if there is none."""
        began, verb = min(tuple(self._began.values()), default=(math.inf, ""))
        seconds = self._clock() - began
        if seconds < OVERDUE_SECONDS:
            return None
        return f"a request to {verb} has not been answered for {seconds:.0f} s"


def metrics() -> SchedulerMetrics:
    return SchedulerMetrics(VERBS, [each.value for each in RequestResult])


def routes(
    verbs: Extender,
    unavailable: UnavailableReason,
    metrics: SchedulerMetrics,
    by_verb: Mapping[str, UnavailableReason] | None = None,
    unready: UnavailableReason | None = None,
    in_flight: RequestsInFlight | None = None,
) -> dict[str, Route]:
    """Returns the routes by path, for an empty `urlPrefix`. `by_verb` has further checks of whether
    this process can decide. `unready`: why this process is not Ready, if not whenever it is
    unavailable."""

    in_flight = in_flight or RequestsInFlight()

    def status(reason: str | None) -> Reply:
        return text_reply(200, "ok") if reason is None else text_reply(503, reason)

    pages = {
        "/healthz": Route("GET", lambda _: status(in_flight.overdue())),
        "/readyz": Route(
            "GET", lambda _: status(in_flight.overdue() or (unready or unavailable)())
        ),
        "/metrics": Route("GET", lambda _: Reply(200, metrics.render(), TEXT)),
    }
    answers = _Endpoints(verbs)
    handlers: dict[str, _Answer] = {
        "filter": answers.filter,
        "prioritize": answers.prioritize,
        "preempt": answers.preempt,
        "bind": answers.bind,
    }
    conditions: dict[str, tuple[UnavailableReason, ...]] = dict.fromkeys(VERBS, (unavailable,))
    for verb, condition in (by_verb or {}).items():
        conditions[verb] += (condition,)
    return pages | {
        f"/{verb}": Route(
            "POST", _guarded(verb, handlers[verb], conditions[verb], metrics, in_flight)
        )
        for verb in VERBS
    }


_Answer = Callable[[bytes], tuple[bytes, str]]
"""The JSON of a result, and its `Error`."""


class _Endpoints:
    def __init__(self, verbs: Extender) -> None:
        self._verbs = verbs

    def filter(self, body: bytes) -> tuple[bytes, str]:
        args = extender_args(body)
        result = self._verbs.filter(args)
        return filter_answer(args, result), result.error

    def prioritize(self, body: bytes) -> tuple[bytes, str]:
        return encode(self._verbs.prioritize(extender_args(body))), ""

    def preempt(self, body: bytes) -> tuple[bytes, str]:
        return encode(self._verbs.preempt(preemption_args(body))), ""

    def bind(self, body: bytes) -> tuple[bytes, str]:
        result = self._verbs.bind(binding_args(body))
        return encode(result), result.error


def _guarded(
    verb: str,
    answer: _Answer,
    conditions: Sequence[UnavailableReason],
    metrics: SchedulerMetrics,
    in_flight: RequestsInFlight,
) -> Callable[[bytes], Reply]:
    """Returns a handler that turns an exception into the answer to that request."""

    def handle(body: bytes) -> Reply:
        start = time.perf_counter()
        result = RequestResult.FAULT
        try:
            reason = next(filter(None, (unavailable() for unavailable in conditions)), None)
            if reason is not None:
                result = RequestResult.UNAVAILABLE
                return text_reply(503, reason)
            with in_flight.answering(verb):
                encoded, error = answer(body)
            result = RequestResult.ERROR if error else RequestResult.ANSWERED
            return Reply(200, encoded)
        except BadRequestError:
            result = RequestResult.REFUSED
            raise
        except Exception as fault:
            log.exception("%s: exception in the handler", verb)
            return _fault_reply(verb, f"topolet: {type(fault).__name__}: {fault}")
        finally:
            metrics.answered(verb, result, time.perf_counter() - start)

    return handle


def _fault_reply(verb: str, text: str) -> Reply:
    """kube-scheduler reports the `Error` of a result to users, but not the body of a 500."""
    if verb == "filter":
        return Reply(200, encode(ExtenderFilterResult(error=text)))
    if verb == "bind":
        return Reply(200, encode(ExtenderBindingResult(text)))
    return text_reply(500, text)
