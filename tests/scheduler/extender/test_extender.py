from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.http.requests import BadRequestError, Reply
from agent.http.routes import Route
from agent.scheduler.extender import extender
from agent.scheduler.extender.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
)
from agent.telemetry.schedulermetrics import SchedulerMetrics
from tests.scheduler.extender.requests import ARGS, BINDING, META, POD, text

PREEMPTION = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": META}
BODIES = {"filter": ARGS, "prioritize": ARGS, "preempt": PREEMPTION, "bind": BINDING}


class First:
    """The first node is the best one; pods with certain names are rejected or raise an
    exception."""

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        self._break(args.pod.name)
        first, *rest = args.node_names
        return ExtenderFilterResult([first], dict.fromkeys(rest, "is not the first"))

    def prioritize(self, args: ExtenderArgs) -> msgspec.Raw:
        self._break(args.pod.name)
        scores = [{"Host": name, "Score": 10} for name in args.node_names]
        return msgspec.Raw(msgspec.json.encode(scores))

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        self._break(args.pod.name)
        return ExtenderPreemptionResult({"f1": args.victims["f1"]})

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        self._break(args.pod_name)
        return ExtenderBindingResult("was deleted" if args.pod_name == "gone" else "")

    def _break(self, name: str) -> None:
        if name == "broken":
            raise KeyError(name)


class Page:
    """The routes, with the parts that they use."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.no_preemption: str | None = None
        self.counted: SchedulerMetrics = extender.metrics()
        self.routes: dict[str, Route] = extender.routes(
            First(),
            lambda: self.reason,
            self.counted,
            {"preempt": lambda: self.no_preemption},
        )

    def ask(self, verb: str, body: object = None) -> Reply:
        return self.routes[f"/{verb}"].handle(b"" if body is None else text(body))

    def count(self, verb: str, result: str) -> float:
        line = f'topolet_scheduler_requests_total{{result="{result}",verb="{verb}"}} '
        (found,) = (each for each in self._lines() if each.startswith(line))
        return float(found.removeprefix(line))

    def timed(self, verb: str) -> float:
        line = f'topolet_scheduler_request_duration_seconds_count{{verb="{verb}"}} '
        (found,) = (each for each in self._lines() if each.startswith(line))
        return float(found.removeprefix(line))

    def _lines(self) -> list[str]:
        return self.ask("metrics").body.decode().splitlines()


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        (
            "filter",
            {
                "NodeNames": ["f1"],
                "FailedNodes": {"f2": "is not the first", "n1": "is not the first"},
                "FailedAndUnresolvableNodes": {},
                "Error": "",
            },
        ),
        ("prioritize", [{"Host": each, "Score": 10} for each in ("f1", "f2", "n1")]),
        ("preempt", {"NodeNameToMetaVictims": {"f1": META["f1"]}}),
        ("bind", {"Error": ""}),
    ],
)
def test_every_verb_is_answered(page: Page, verb: str, answer: object) -> None:
    reply = page.ask(verb, BODIES[verb])
    assert (reply.status, reply.content_type) == (200, "application/json")
    assert json.loads(reply.body) == answer
    assert page.count(verb, "answered") == page.timed(verb) == 1


def test_a_condition_of_one_verb_does_not_affect_others(page: Page) -> None:
    page.no_preemption = "the watch of poddisruptionbudgets has been out of touch for 31 s"
    reply = page.ask("preempt", BODIES["preempt"])
    assert (reply.status, reply.body.decode().strip()) == (503, page.no_preemption)
    assert page.count("preempt", "unavailable") == 1
    for verb in ("filter", "prioritize", "bind"):
        assert page.ask(verb, BODIES[verb]).status == 200
    assert page.ask("readyz").status == 200


def named(verb: str, name: str) -> dict[str, Any]:
    body = BODIES[verb]
    if verb == "bind":
        return {**body, "PodName": name}
    return {**body, "Pod": {**POD, "metadata": {**POD["metadata"], "name": name}}}


@pytest.mark.parametrize(
    ("verb", "status"), [("filter", 200), ("prioritize", 500), ("preempt", 500), ("bind", 200)]
)
def test_an_internal_error_is_returned_and_logged(
    page: Page, verb: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    reply = page.ask(verb, named(verb, "broken"))
    assert reply.status == status
    message = json.loads(reply.body)["Error"] if status == 200 else reply.body.decode()
    assert message.strip() == "topolet: KeyError: 'broken'"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.getMessage().startswith(verb)
    assert page.count(verb, "fault") == 1
    assert page.ask(verb, BODIES[verb]).status == 200


def test_a_refused_bind_has_its_reason(page: Page) -> None:
    reply = page.ask("bind", named("bind", "gone"))
    assert (reply.status, json.loads(reply.body)) == (200, {"Error": "was deleted"})
    assert page.count("bind", "error") == 1


@pytest.mark.parametrize("verb", extender.VERBS)
def test_an_invalid_body_is_refused_by_the_server(page: Page, verb: str) -> None:
    with pytest.raises(BadRequestError, match="Extender"):
        page.ask(verb, {})
    assert page.count(verb, "refused") == 1


def test_unavailable_verbs_return_the_reason(page: Page) -> None:
    assert page.ask("readyz").status == 200
    page.reason = "another leads"
    for verb in extender.VERBS:
        for body in (BODIES[verb], {}):
            reply = page.ask(verb, body)
            assert (reply.status, reply.body) == (503, b"another leads\n")
        assert page.count(verb, "unavailable") == 2
    assert page.ask("readyz").status == 503
    assert page.ask("healthz").status == 200
    page.reason = None
    assert page.ask("filter", ARGS).status == 200


def test_encoded_scores_are_sent_unchanged() -> None:
    class Raw(First):
        def prioritize(self, args: ExtenderArgs) -> msgspec.Raw:
            return msgspec.Raw(b'[{"Host":"n1","Score":3}]')

    routes = extender.routes(Raw(), lambda: None, extender.metrics())
    assert routes["/prioritize"].handle(text(ARGS)).body == b'[{"Host":"n1","Score":3}]'


def test_a_standby_may_be_ready_while_it_answers_no_verb() -> None:
    reasons: list[str | None] = [None]
    routes = extender.routes(
        First(), lambda: "the leader is b", extender.metrics(), unready=lambda: reasons[0]
    )
    assert routes["/readyz"].handle(b"").status == 200
    assert routes["/filter"].handle(text(BODIES["filter"])).status == 503
    reasons[0] = "lease n/l: 403"
    assert routes["/readyz"].handle(b"").body == b"lease n/l: 403\n"
