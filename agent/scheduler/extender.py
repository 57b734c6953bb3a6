"""The four verbs of a scheduler extender as routes, beside the pages that say how it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from agent.scheduler import wire
from agent.scheduler.routes import TEXT, BadRequestError, Reply, Route, said
from agent.scheduler.wire import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
)
from agent.telemetry.schedulermetrics import SchedulerMetrics

log = logging.getLogger(__name__)


class Verbs(Protocol):
    """Who decides. Called from several threads at once; what can't be done is said in the result,
    an exception is a fault of ours."""

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult: ...

    def prioritize(self, args: ExtenderArgs) -> Sequence[HostPriority] | msgspec.Raw:
        """Raw: JSON that was made before."""
        ...

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult: ...

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult: ...


class Result(StrEnum):
    """What became of a request: an answer, one that says `Error`, a body that makes no sense, no
    word because another decides, a fault of ours."""

    ANSWERED = "answered"
    ERROR = "error"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    FAULT = "fault"


VERBS: Final = ("filter", "prioritize", "preempt", "bind")

Standing = Callable[[], str | None]
"""Why this process can't decide now; None when it can."""


def metrics() -> SchedulerMetrics:
    return SchedulerMetrics(VERBS, [each.value for each in Result])


def routes(verbs: Verbs, standing: Standing, counted: SchedulerMetrics) -> dict[str, Route]:
    """By path, for a `urlPrefix` without one."""

    def ready(_: bytes) -> Reply:
        reason = standing()
        return said(200, "ok") if reason is None else said(503, reason)

    pages = {
        "/healthz": Route("GET", lambda _: said(200, "ok")),
        "/readyz": Route("GET", ready),
        "/metrics": Route("GET", lambda _: Reply(200, counted.render(), TEXT)),
    }
    answers = _Answers(verbs)
    handlers: dict[str, _Answer] = {
        "filter": answers.filter,
        "prioritize": answers.prioritize,
        "preempt": answers.preempt,
        "bind": answers.bind,
    }
    return pages | {
        f"/{verb}": Route("POST", _guarded(verb, handlers[verb], standing, counted))
        for verb in VERBS
    }


_Answer = Callable[[bytes], tuple[bytes, str]]
"""The answer's JSON, and the `Error` that it says."""


class _Answers:
    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    def filter(self, body: bytes) -> tuple[bytes, str]:
        args = wire.extender_args(body)
        result = self._verbs.filter(args)
        return wire.filter_answer(args, result), result.error

    def prioritize(self, body: bytes) -> tuple[bytes, str]:
        return wire.encode(self._verbs.prioritize(wire.extender_args(body))), ""

    def preempt(self, body: bytes) -> tuple[bytes, str]:
        return wire.encode(self._verbs.preempt(wire.preemption_args(body))), ""

    def bind(self, body: bytes) -> tuple[bytes, str]:
        result = self._verbs.bind(wire.binding_args(body))
        return wire.encode(result), result.error


def _guarded(
    verb: str, answer: _Answer, standing: Standing, counted: SchedulerMetrics
) -> Callable[[bytes], Reply]:
    """Whatever goes wrong with one request is the answer to that request."""

    def handle(body: bytes) -> Reply:
        start = time.perf_counter()
        result = Result.FAULT
        try:
            reason = standing()
            if reason is not None:
                result = Result.UNAVAILABLE
                return said(503, reason)
            encoded, error = answer(body)
            result = Result.ERROR if error else Result.ANSWERED
            return Reply(200, encoded)
        except BadRequestError:
            result = Result.REFUSED
            raise
        except Exception as fault:
            log.exception("%s: a fault of ours", verb)
            return _confessed(verb, f"topolet: {type(fault).__name__}: {fault}")
        finally:
            counted.answered(verb, result, time.perf_counter() - start)

    return handle


def _confessed(verb: str, text: str) -> Reply:
    """kube-scheduler shows `Error` to people where an answer has one, and no body of a 500."""
    if verb == "filter":
        return Reply(200, wire.encode(ExtenderFilterResult(error=text)))
    if verb == "bind":
        return Reply(200, wire.encode(ExtenderBindingResult(text)))
    return said(500, text)
