"""The path /explain of the scheduler's HTTP port for pages, and its client.

Users reach it through the proxy of the API server, which does not identify them. So the answer
contains only what the user can read anyway: the request contains the pods, which the user had to
read before, and the answer names no other pod and no PodDisruptionBudget. It uses what the
scheduler knows of a pod (its node, its group) only if the request has the uid of that pod, which
only readers of the pod know. One explanation is made at a time, within EXPLAIN_SECONDS.

Pods in the cluster may reach the port directly, without credentials. So a request has to name the
holder of the leader's Lease. The holder has 122 random bits, and is in no other output that others
can read, so the caller has the permission to read the Lease.

Instead of names the answer has references: the hash of an object's uid with a salt of the answer.
The client lists the pods and budgets that its user may list, and replaces the references to these
by names. Others can't be resolved, because a uid has 122 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from agent.http.requests import BadRequestError, Reply, Route, text_reply
from agent.kube import objects
from agent.kube.errors import ForbiddenError, MalformedError, NotFoundError
from agent.kube.transport import Transport, segment
from agent.model import bounds, explanation
from agent.model.bounds import JsonError
from agent.model.explanation import SCHEMA_VERSION, Explanation, NameOf, NodeVerdict
from agent.model.objects import ObjectError, ObjectIdentity
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod, PodObject
from agent.model.settings.scheduler import LEASE_NAME
from agent.scheduler.leader import election
from agent.scheduler.preemption import disruption_budgets

PATH: Final = "/explain"
SERVICE: Final = "topolet-scheduler:http"
"""Name and port of the Service for the scheduler's HTTP port."""
BODY_BYTES: Final = 4 << 20
MAX_PODS: Final = 256
"""Pods of one request: those of a node that is drained."""
MAX_DRAINED: Final = 64
_SALT_BYTES: Final = 16
EXPLAIN_SECONDS: Final = 8.0
"""Time for one request. Nodes that are not explained within it are only counted."""
MAX_NAMED_NODES: Final = 16
"""Nodes whose pods the client lists for their names."""
_LONGEST_NAME: Final = 253
_REFERENCE: Final = "#"
"""The first character of a reference; no name of an object begins with it."""


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    pods: tuple[PodObject, ...]
    drained: tuple[str, ...] = ()
    lease_holder: str = ""


class Request(NamedTuple):
    """`lease_holder`: the holder of the leader's Lease that the client has read."""

    pods: tuple[ApiPod, ...]
    drained: tuple[str, ...]
    lease_holder: str


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """`salt`: the salt of the references, in hexadecimal digits."""

    explanations: tuple[Explanation, ...]
    salt: str = ""
    schema_version: int = SCHEMA_VERSION


class _Item(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity


class _Listed(msgspec.Struct, frozen=True):
    items: tuple[_Item, ...] | None = ()


_requests: Final = msgspec.json.Decoder(_Request)
_answers: Final = msgspec.json.Decoder(Answer)
_lists: Final = msgspec.json.Decoder(_Listed)


def decode_request(body: bytes) -> Request:
    """Raises BadRequestError, which names the field."""
    try:
        raw = bounds.decode(_requests, body)
        pods = tuple(map(apiobjects.value, raw.pods))
    except (JsonError, ObjectError) as error:
        raise BadRequestError(f"explain: {error}") from None
    if not pods or len(pods) > MAX_PODS:
        raise BadRequestError(f"explain: pods: {len(pods)} are not 1 to {MAX_PODS}")
    if len(raw.drained) > MAX_DRAINED or any(len(each) > _LONGEST_NAME for each in raw.drained):
        raise BadRequestError(f"explain: drained: not up to {MAX_DRAINED} names of nodes")
    return Request(pods, raw.drained, raw.lease_holder)


class PodExplainer(Protocol):
    """What an `Explainer` does for requests."""

    def unknown(self, nodes: Iterable[str]) -> list[str]: ...

    def explain_all(
        self,
        pods: Iterable[ApiPod],
        drained: Sequence[str] = (),
        *,
        until: float = ...,
        name: NameOf = ...,
    ) -> tuple[Explanation, ...]: ...


def route(
    explainer: PodExplainer, unavailable: Callable[[], str | None], lease_holder: str
) -> Route:
    """`unavailable` and `lease_holder`: see `refusal`."""
    busy = threading.Lock()

    def handle(body: bytes) -> Reply:
        pods, drained, named_holder = decode_request(body)
        if (refused := refusal(lease_holder, named_holder, unavailable)) is not None:
            return refused
        if unknown := explainer.unknown(drained):
            raise BadRequestError(f"explain: drained: node {unknown[0]} does not exist")
        if not busy.acquire(blocking=False):
            return text_reply(503, "another explanation is being made: try again")
        try:
            until, salt = time.monotonic() + EXPLAIN_SECONDS, secrets.token_hex(_SALT_BYTES)

            def name(uid: str, title: str) -> str:
                return reference(salt, uid)

            found = explainer.explain_all(pods, drained, until=until, name=name)
        finally:
            busy.release()
        return Reply(200, msgspec.json.encode(Answer(found, salt)))

    return Route("POST", handle)


def refusal(
    lease_holder: str, named_holder: str, unavailable: Callable[[], str | None]
) -> Reply | None:
    """The reply to a request that must not or can't be answered now; None if it can.
    `lease_holder`: the name of this process in the leader's Lease; "" without leader election, and
    then all callers are answered. `named_holder`: the holder that the request names. `unavailable`:
    returns why this process does not know the cluster now, None if it does."""
    if lease_holder and not hmac.compare_digest(named_holder.encode(), lease_holder.encode()):
        return text_reply(403, "the request does not name the holder of the leader's Lease")
    if (reason := unavailable()) is not None:
        return text_reply(503, reason)
    return None


def request_explanations(
    transport: Transport,
    namespace: str,
    pods: Sequence[dict[str, Any]],
    drained: Sequence[str],
) -> tuple[Explanation, ...]:
    """Requests the scheduler's explanations of these pods through the API server, and adds the
    names of the pods and budgets that the caller may list. `namespace`: of the scheduler's Service
    and of the leader's Lease. Raises KubeError, also a NotFoundError that says how to name another
    namespace."""
    proxy = f"/api/v1/namespaces/{segment(namespace)}/services/{SERVICE}/proxy{PATH}"
    holder = _lease_holder(transport, namespace)
    body = {"pods": list(pods), "drained": list(drained), "leaseHolder": holder}
    try:
        text = transport.create(proxy, body)
    except NotFoundError as error:
        name = SERVICE.partition(":")[0]
        if f'"{name}" not found' not in str(error):
            raise  # of the scheduler's own port
        raise NotFoundError(
            f"Service {namespace}/{name} does not exist: either the scheduler is not installed, or "
            "--release-namespace names another namespace"
        ) from None
    try:
        answer = decode_answer(text)
    except JsonError as error:
        raise MalformedError(f"POST {proxy}: {error}") from error
    namespaces = dict.fromkeys(str(each["metadata"].get("namespace", "")) for each in pods)
    return named(answer, dict(_titles(transport, answer, tuple(namespaces))))


def _lease_holder(transport: Transport, namespace: str) -> str:
    """The holder of the Lease; empty if the Lease does not exist, as without leader election."""
    try:
        return election.read_holder(transport, namespace, LEASE_NAME)
    except NotFoundError:
        return ""


def decode_answer(text: bytes) -> Answer:
    """Raises JsonError."""
    return bounds.decode(_answers, text)


def reference(salt: str, uid: str) -> str:
    """A keyed hash of an object's uid. Only clients that may read the object know the uid."""
    keyed = hashlib.blake2b(uid.encode(), key=salt.encode()[:64], digest_size=16)
    return f"{_REFERENCE}{keyed.hexdigest()}"


def named(answer: Answer, titles: Mapping[str, str]) -> tuple[Explanation, ...]:
    """The explanations with titles instead of references, and without references that no title
    resolves. `titles`: by uid."""
    known = {reference(answer.salt, uid): title for uid, title in titles.items()}

    def name(each: str) -> str:
        return known.get(each, "") if each.startswith(_REFERENCE) else each

    return tuple(explanation.renamed(each, name) for each in answer.explanations)


def _titles(
    transport: Transport, answer: Answer, namespaces: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The uids and titles of the pods and budgets that the references may mean."""
    verdicts = [of_node for each in answer.explanations for of_node in each.nodes]
    nodes = dict.fromkeys(each.node for each in verdicts if _has_references(each))
    for node in list(nodes)[:MAX_NAMED_NODES]:
        query = {"fieldSelector": f"spec.nodeName={node}"}
        yield from _listed(transport, objects.path("", "v1"), objects.POD.plural, namespaces, query)
    if any(each.eviction is not None and each.eviction.budgets for each in verdicts):
        base = objects.path("policy", "v1")
        yield from _listed(transport, base, disruption_budgets.PLURAL, namespaces, {})


def _has_references(verdict: NodeVerdict) -> bool:
    named = (at.name for each in verdict.causes for at in each.objects)
    return verdict.eviction is not None or any(each.startswith(_REFERENCE) for each in named)


def _listed(
    transport: Transport,
    base: str,
    plural: str,
    namespaces: Sequence[str],
    query: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """The uids and titles of the objects that the caller may list: in all namespaces, or else in
    those of `namespaces`."""
    try:
        yield from _items(transport, f"{base}/{plural}", query)
        return
    except ForbiddenError:
        pass  # most users may list only in some namespaces
    for namespace in namespaces:
        try:
            yield from _items(transport, f"{base}/namespaces/{segment(namespace)}/{plural}", query)
        except ForbiddenError:
            continue


def _items(
    transport: Transport, path: str, query: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    try:
        return decode_titles(transport.get(path, query))
    except JsonError as error:
        raise MalformedError(f"GET {path}: {error}") from error


def decode_titles(text: bytes) -> tuple[tuple[str, str], ...]:
    """The uids and titles of the objects in a list. Raises JsonError."""
    found = (each.metadata for each in bounds.decode(_lists, text).items or ())
    return tuple((each.uid, f"{each.namespace}/{each.name}") for each in found)
