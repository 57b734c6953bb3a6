"""The path /explain of the scheduler's HTTP port for pages, and its client.

A user reaches it through the proxy of the API server, which does not tell who the user is. So the
answer shows no more than the user knows: the request has the pods themselves, which the user had to
read, and the answer names no other pod and no PodDisruptionBudget. What the scheduler knows of one
pod (its node, its group) counts only for a pod with the uid of that one, which only readers of the
pod know. One explanation is made at a time, within EXPLAIN_SECONDS.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from agent.http.requests import BadRequestError, Reply
from agent.http.routes import Route, text_reply
from agent.kube.errors import MalformedError
from agent.kube.transport import Transport, segment
from agent.model import apiobjects, bounds, explanation
from agent.model.apiobjects import ApiPod, PodObject
from agent.model.bounds import JsonError
from agent.model.explanation import Explanation, Explanations
from agent.model.objects import ObjectError

PATH: Final = "/explain"
BODY_BYTES: Final = 4 << 20
MAX_PODS: Final = 256
"""Pods of one request: those of a node that is drained."""
MAX_DRAINED: Final = 64
EXPLAIN_SECONDS: Final = 8.0
"""Time for one request. Nodes that it does not reach are counted and not looked at."""
_LONGEST_NAME: Final = 253


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    pods: tuple[PodObject, ...]
    drained: tuple[str, ...] = ()


_requests: Final = msgspec.json.Decoder(_Request)


def decode_request(body: bytes) -> tuple[tuple[ApiPod, ...], tuple[str, ...]]:
    """The pods, and the drained nodes. Raises BadRequestError, which names the field."""
    try:
        raw = bounds.decode(_requests, body)
        pods = tuple(map(apiobjects.value, raw.pods))
    except (JsonError, ObjectError) as error:
        raise BadRequestError(f"explain: {error}") from None
    if not pods or len(pods) > MAX_PODS:
        raise BadRequestError(f"explain: pods: {len(pods)} are not 1 to {MAX_PODS}")
    if len(raw.drained) > MAX_DRAINED or any(len(each) > _LONGEST_NAME for each in raw.drained):
        raise BadRequestError(f"explain: drained: not up to {MAX_DRAINED} names of nodes")
    return pods, raw.drained


class PodExplainer(Protocol):
    """What an `Explainer` does for requests."""

    def unknown(self, nodes: Iterable[str]) -> list[str]: ...

    def explain_all(
        self, pods: Iterable[ApiPod], drained: Sequence[str] = (), *, until: float = ...
    ) -> tuple[Explanation, ...]: ...


def route(explainer: PodExplainer, unavailable: Callable[[], str | None]) -> Route:
    """`unavailable`: why this process does not know the cluster now, None if it does."""
    busy = threading.Lock()

    def handle(body: bytes) -> Reply:
        pods, drained = decode_request(body)
        if (reason := unavailable()) is not None:
            return text_reply(503, reason)
        if unknown := explainer.unknown(drained):
            raise BadRequestError(f"explain: drained: node {unknown[0]} does not exist")
        if not busy.acquire(blocking=False):
            return text_reply(503, "another explanation is being made: try again")
        try:
            until = time.monotonic() + EXPLAIN_SECONDS
            found = explainer.explain_all(pods, drained, until=until)
        finally:
            busy.release()
        return Reply(200, explanation.encode(Explanations(found)))

    return Route("POST", handle)


def request_explanations(
    transport: Transport,
    namespace: str,
    service: str,
    pods: Sequence[dict[str, Any]],
    drained: Sequence[str],
) -> tuple[Explanation, ...]:
    """The scheduler's explanations of these pods, through the API server. `service`: NAME:PORT of
    the Service in that namespace. Raises KubeError."""
    proxy = f"/api/v1/namespaces/{segment(namespace)}/services/{service}/proxy{PATH}"
    text = transport.create(proxy, {"pods": list(pods), "drained": list(drained)})
    try:
        return explanation.decode(text).explanations
    except JsonError as error:
        raise MalformedError(f"POST {proxy}: {error}") from error
