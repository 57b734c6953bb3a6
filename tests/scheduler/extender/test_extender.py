from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.http.requests import BadRequestError, Reply, Route
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
from tests.kube.clock import Clock
from tests.scheduler.extender.requests import ARGS, BINDING, META, POD, encoded

PREEMPTION = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": META}
BODIES = {"filter": ARGS, "prioritize": ARGS, "preempt": PREEMPTION, "bind": BINDING}


class FirstNode:
    """Handlers that choose the first node. A pod named `broken` raises an exception, and one named
    `deleted` is not bound."""

    def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
        self._raise_if_broken(args.pod.name)
        first, *rest = args.node_names
        return ExtenderFilterResult([first], dict.fromkeys(rest, "is not the first"))

    def prioritize(self, args: ExtenderArgs) -> msgspec.Raw:
        self._raise_if_broken(args.pod.name)
        scores = [{"Host": name, "Score": 10} for name in args.node_names]
        return msgspec.Raw(msgspec.json.encode(scores))

    def preempt(self, args: ExtenderPreemptionArgs) -> ExtenderPreemptionResult:
        self._raise_if_broken(args.pod.name)
        return ExtenderPreemptionResult({"f1": args.victims["f1"]})

    def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
        self._raise_if_broken(args.pod_name)
        return ExtenderBindingResult("was deleted" if args.pod_name == "deleted" else "")

    def _raise_if_broken(self, name: str) -> None:
        if name == "broken":
            raise KeyError(name)


class Endpoints:
    """The routes. `unavailable`, `preempt_unavailable`: why all verbs, or preempt alone, are not
    served."""

    def __init__(self) -> None:
        self.unavailable: str | None = None
        self.preempt_unavailable: str | None = None
        self.metrics: SchedulerMetrics = extender.metrics()
        self.routes: dict[str, Route] = extender.routes(
            FirstNode(),
            lambda: self.unavailable,
            self.metrics,
            {"preempt": lambda: self.preempt_unavailable},
        )

    def request(self, verb: str, body: object = None) -> Reply:
        return self.routes[f"/{verb}"].handle(b"" if body is None else encoded(body))

    def count(self, verb: str, result: str) -> float:
        line = f'topolet_scheduler_requests_total{{result="{result}",verb="{verb}"}} '
        (found,) = (each for each in self._lines() if each.startswith(line))
        return float(found.removeprefix(line))

    def duration_count(self, verb: str) -> float:
        line = f'topolet_scheduler_request_duration_seconds_count{{verb="{verb}"}} '
        (found,) = (each for each in self._lines() if each.startswith(line))
        return float(found.removeprefix(line))

    def _lines(self) -> list[str]:
        return self.request("metrics").body.decode().splitlines()


@pytest.fixture
def endpoints() -> Endpoints:
    return Endpoints()


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
def test_every_verb_is_answered(endpoints: Endpoints, verb: str, answer: object) -> None:
    reply = endpoints.request(verb, BODIES[verb])
    assert (reply.status, reply.content_type) == (200, "application/json")
    assert json.loads(reply.body) == answer
    assert endpoints.count(verb, "answered") == endpoints.duration_count(verb) == 1


def test_an_unavailable_verb_does_not_affect_others(endpoints: Endpoints) -> None:
    endpoints.preempt_unavailable = (
        "the watch of poddisruptionbudgets has been out of touch for 31 s"
    )
    reply = endpoints.request("preempt", BODIES["preempt"])
    assert (reply.status, reply.body.decode().strip()) == (503, endpoints.preempt_unavailable)
    assert endpoints.count("preempt", "unavailable") == 1
    for verb in ("filter", "prioritize", "bind"):
        assert endpoints.request(verb, BODIES[verb]).status == 200
    assert endpoints.request("readyz").status == 200


def for_pod(verb: str, name: str) -> dict[str, Any]:
    body = BODIES[verb]
    if verb == "bind":
        return {**body, "PodName": name}
    return {**body, "Pod": {**POD, "metadata": {**POD["metadata"], "name": name}}}


@pytest.mark.parametrize(
    ("verb", "status"), [("filter", 200), ("prioritize", 500), ("preempt", 500), ("bind", 200)]
)
def test_an_internal_error_is_returned_and_logged(
    endpoints: Endpoints, verb: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    reply = endpoints.request(verb, for_pod(verb, "broken"))
    assert reply.status == status
    message = json.loads(reply.body)["Error"] if status == 200 else reply.body.decode()
    assert message.strip() == "topolet: KeyError: 'broken'"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.getMessage().startswith(verb)
    assert endpoints.count(verb, "fault") == 1
    assert endpoints.request(verb, BODIES[verb]).status == 200


def test_a_rejected_bind_returns_the_reason(endpoints: Endpoints) -> None:
    reply = endpoints.request("bind", for_pod("bind", "deleted"))
    assert (reply.status, json.loads(reply.body)) == (200, {"Error": "was deleted"})
    assert endpoints.count("bind", "error") == 1


@pytest.mark.parametrize("verb", extender.VERBS)
def test_an_invalid_body_is_rejected(endpoints: Endpoints, verb: str) -> None:
    with pytest.raises(BadRequestError, match="Extender"):
        endpoints.request(verb, {})
    assert endpoints.count(verb, "refused") == 1


def test_unavailable_verbs_return_the_reason(endpoints: Endpoints) -> None:
    assert endpoints.request("readyz").status == 200
    endpoints.unavailable = "another replica is the leader"
    for verb in extender.VERBS:
        for body in (BODIES[verb], {}):
            reply = endpoints.request(verb, body)
            assert (reply.status, reply.body) == (503, b"another replica is the leader\n")
        assert endpoints.count(verb, "unavailable") == 2
    assert endpoints.request("readyz").status == 503
    assert endpoints.request("healthz").status == 200
    endpoints.unavailable = None
    assert endpoints.request("filter", ARGS).status == 200


def test_a_process_that_does_not_finish_a_request_is_not_healthy() -> None:
    clock = Clock()
    in_flight = extender.RequestsInFlight(clock)
    seen: list[tuple[str, float, int, int, bytes]] = []

    class Slow(FirstNode):
        def filter(self, args: ExtenderArgs) -> ExtenderFilterResult:
            self._probe("filter")
            return super().filter(args)

        def bind(self, args: ExtenderBindingArgs) -> ExtenderBindingResult:
            self._probe("bind")
            return super().bind(args)

        def _probe(self, verb: str) -> None:
            began = clock.now
            for seconds in (4.0, extender.OVERDUE_SECONDS):
                clock.now = began + seconds
                healthy, ready = (routes[path].handle(b"") for path in ("/healthz", "/readyz"))
                seen.append((verb, seconds, healthy.status, ready.status, healthy.body))

    routes = extender.routes(Slow(), lambda: None, extender.metrics(), in_flight=in_flight)
    for verb in ("filter", "bind"):
        routes[f"/{verb}"].handle(encoded(BODIES[verb]))
    late = b"a request to filter has not been answered for 5 s\n"
    assert seen == [
        ("filter", 4.0, 200, 200, b"ok\n"),
        ("filter", 5.0, 503, 503, late),
        ("bind", 4.0, 200, 200, b"ok\n"),
        ("bind", 5.0, 200, 200, b"ok\n"),
    ]
    assert routes["/healthz"].handle(b"").status == 200


def test_a_standby_may_be_ready_while_its_verbs_are_unavailable() -> None:
    reasons: list[str | None] = [None]
    routes = extender.routes(
        FirstNode(), lambda: "the leader is b", extender.metrics(), unready=lambda: reasons[0]
    )
    assert routes["/readyz"].handle(b"").status == 200
    assert routes["/filter"].handle(encoded(BODIES["filter"])).status == 503
    reasons[0] = "lease n/l: 403"
    assert routes["/readyz"].handle(b"").body == b"lease n/l: 403\n"
