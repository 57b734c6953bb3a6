"""The HTTP routes of a scheduler extender: filter, prioritize, preempt, bind, and the health and
metrics pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from agent.scheduler import extender_types
from agent.scheduler.extender_types import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
)
from agent.scheduler.http_routes import TEXT, BadRequestError, Reply, Route, text_reply
from agent.telemetry.schedulermetrics import SchedulerMetrics

log = logging.getLogger(__name__)


class Extender(Protocol):
    """The handlers of the four verbs. Called from several threads at once. A failure is reported in
    the result; an exception is a bug."""

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult: ...

    def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority] | msgspec.Raw:
        """Raw is encoded JSON."""
        ...

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult: ...

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult: ...


class RequestResult(StrEnum):
    """The outcome of a request: a result, a result with `Error`, an invalid body, no decision
    because another process leads, an exception."""

    ANSWERED = "answered"
    ERROR = "error"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    FAULT = "fault"


VERBS: Final = ("filter", "prioritize", "preempt", "bind")

UnavailableReason = Callable[[], str | None]
"""Returns why this process can't decide now; None when it can."""


def metrics() -> SchedulerMetrics:
    return SchedulerMetrics(VERBS, [each.value for each in RequestResult])


def routes(
    verbs: Extender,
    unavailable: UnavailableReason,
    counted: SchedulerMetrics,
    also: Mapping[str, UnavailableReason] | None = None,
) -> dict[str, Route]:
    """Returns the routes by path, for an empty `urlPrefix`. `also` has additional reasons not to
    answer, by verb."""

    def ready(_: bytes) -> Reply:
        reason = unavailable()
        return text_reply(200, "ok") if reason is None else text_reply(503, reason)

    pages = {
        "/healthz": Route("GET", lambda _: text_reply(200, "ok")),
        "/readyz": Route("GET", ready),
        "/metrics": Route("GET", lambda _: Reply(200, counted.render(), TEXT)),
    }
    answers = _Endpoints(verbs)
    handlers: dict[str, _Answer] = {
        "filter": answers.filter,
        "prioritize": answers.prioritize,
        "preempt": answers.preempt,
        "bind": answers.bind,
    }
    conditions: dict[str, tuple[UnavailableReason, ...]] = dict.fromkeys(VERBS, (unavailable,))
    for verb, condition in (also or {}).items():
        conditions[verb] += (condition,)
    return pages | {
        f"/{verb}": Route("POST", _guarded(verb, handlers[verb], conditions[verb], counted))
        for verb in VERBS
    }


_Answer = Callable[[bytes], tuple[bytes, str]]
"""The JSON of a result, and its `Error`."""


class _Endpoints:
    def __init__(self, verbs: Extender) -> None:
        self._verbs = verbs

    def filter(self, body: bytes) -> tuple[bytes, str]:
        args = extender_types.extender_args(body)
        result = self._verbs.filter(args)
        return extender_types.filter_answer(args, result), result.error

    def prioritize(self, body: bytes) -> tuple[bytes, str]:
        return extender_types.encode(self._verbs.prioritize(extender_types.extender_args(body))), ""

    def preempt(self, body: bytes) -> tuple[bytes, str]:
        return extender_types.encode(self._verbs.preempt(extender_types.preemption_args(body))), ""

    def bind(self, body: bytes) -> tuple[bytes, str]:
        result = self._verbs.bind(extender_types.binding_args(body))
        return extender_types.encode(result), result.error


def _guarded(
    verb: str, answer: _Answer, conditions: Sequence[UnavailableReason], counted: SchedulerMetrics
) -> Callable[[bytes], Reply]:
    """An exception in one request becomes the answer to that request."""

    def handle(body: bytes) -> Reply:
        start = time.perf_counter()
        result = RequestResult.FAULT
        try:
            reason = next(filter(None, (unavailable() for unavailable in conditions)), None)
            if reason is not None:
                result = RequestResult.UNAVAILABLE
                return text_reply(503, reason)
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
            counted.answered(verb, result, time.perf_counter() - start)

    return handle


def _fault_reply(verb: str, text: str) -> Reply:
    """kube-scheduler shows `Error` of a result to people, but not the body of a 500."""
    if verb == "filter":
        return Reply(200, extender_types.encode(ExtenderFilterResult(error=text)))
    if verb == "bind":
        return Reply(200, extender_types.encode(ExtenderBindingResult(text)))
    return text_reply(500, text)
