from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from agent.model.limits import Limits
from agent.model.wanted import Wanted
from agent.node.telling import Teller, remembers
from agent.rpc.grpc import Code, RpcError
from agent.runtime.cri import Cri, Placement
from tests.waiting import eventually

POOL, LESS = Wanted("0-3"), Wanted("0,2-3")


class Runtime(Cri):
    """Answers when it is let; `failing` by container."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.updates: list[tuple[str, Wanted]] = []
        self.failing: dict[str, Code] = {}
        self.may_answer = threading.Event()
        self.may_answer.set()

    def update(self, container_id: str, wanted: Wanted) -> None:
        self.may_answer.wait(10)
        self.updates.append((container_id, wanted))
        if container_id in self.failing:
            raise RpcError(self.failing[container_id], "as the test wants")


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture
def teller(runtime: Runtime) -> Iterator[Teller]:
    teller = Teller(runtime)
    yield teller
    runtime.may_answer.set()
    teller.close()


def test_what_the_runtime_remembers_otherwise_is_told_once(
    runtime: Runtime, teller: Teller
) -> None:
    for _ in range(3):
        teller.want({"c1": POOL, "c2": POOL}, {"c1": Placement(cpuset="0-3"), "c2": Placement()})
        eventually("told", teller.idle)
    assert runtime.updates == [("c2", POOL)]
    teller.want({"c1": LESS, "c2": POOL}, {})
    eventually("told", teller.idle)
    assert runtime.updates[1:] == [("c1", LESS)]


def test_hands_off_is_never_told(runtime: Runtime, teller: Teller) -> None:
    teller.want({"c1": Wanted()}, {})
    assert teller.idle()


def test_what_a_call_may_put_in_force_counts_and_what_waits_is_forgotten(
    runtime: Runtime, teller: Teller
) -> None:
    runtime.may_answer.clear()
    teller.want({"c1": POOL, "c2": POOL}, {})
    eventually("a call is under way", teller.under_way)
    assert {each: str(cpus) for each, cpus in teller.under_way().items()} == {"c1": "0-3"}
    assert teller.pause()
    runtime.may_answer.set()
    eventually("told", teller.idle)
    assert not teller.pause()
    assert runtime.updates == [("c1", POOL)]


@pytest.mark.parametrize(("code", "again"), [(Code.UNKNOWN, False), (Code.NOT_FOUND, False)])
def test_what_the_runtime_refuses_is_said_once(
    runtime: Runtime, teller: Teller, code: Code, again: bool
) -> None:
    runtime.failing = {"c1": code}
    for _ in range(2):
        teller.want({"c1": POOL}, {})
        eventually("told", teller.idle)
    assert len(runtime.updates) == 1 + again


def test_a_runtime_that_is_away_hears_it_when_it_is_back(
    runtime: Runtime, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.node.telling.RETRY_SECONDS", 0.01)
    runtime.failing = {"c1": Code.UNAVAILABLE}
    teller.want({"c1": POOL}, {})
    eventually("tried", lambda: runtime.updates)
    runtime.failing = {}
    eventually("idle", teller.idle)
    teller.want({"c1": POOL}, {})
    eventually("told", lambda: len(runtime.updates) == 2)


def test_call_without_an_answer_may_come_true_until_a_later_one_is_answered(
    runtime: Runtime, teller: Teller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.node.telling.RETRY_SECONDS", 0.01)
    teller.want({"c1": POOL}, {})
    eventually("told", teller.idle)
    runtime.failing = {"c1": Code.DEADLINE_EXCEEDED}
    teller.want({"c1": LESS}, {})
    eventually("tried", lambda: teller.idle() and len(runtime.updates) == 2)
    assert teller.pause()
    assert {each: str(cpus) for each, cpus in teller.under_way().items()} == {"c1": "0,2-3"}
    runtime.failing = {}
    teller.want({"c1": POOL}, {"c1": Placement(cpuset="0-3")})
    eventually("told what it was told before", lambda: runtime.updates[2:] == [("c1", POOL)])
    eventually("idle", teller.idle)
    assert not teller.pause()
    assert not teller.under_way()


@pytest.mark.parametrize("later", [{}, {"c1": Wanted()}])
def test_call_without_an_answer_is_forgotten_with_its_container(
    runtime: Runtime,
    teller: Teller,
    monkeypatch: pytest.MonkeyPatch,
    later: dict[str, Wanted],
) -> None:
    monkeypatch.setattr("agent.node.telling.RETRY_SECONDS", 0.01)
    runtime.failing = {"c1": Code.DEADLINE_EXCEEDED}
    teller.want({"c1": POOL}, {})
    eventually("tried", lambda: teller.idle() and runtime.updates)
    eventually("counted", teller.under_way)
    teller.want(later, {})
    assert not teller.under_way()


@pytest.mark.parametrize(
    ("said", "wanted", "same"),
    [
        (Placement(cpuset="1", quota_microseconds=5), Wanted("1"), True),
        (Placement(cpuset="1", quota_microseconds=5), Wanted("1", exclusive=True), False),
        (Placement(cpuset="1", quota_microseconds=-1), Wanted("1", exclusive=True), True),
        (Placement(cpuset="1"), Wanted("1", limits=Limits(shares=5)), False),
        (Placement(cpuset="1", shares=5), Wanted("1", limits=Limits(shares=5)), True),
        (Placement(cpuset="0-3"), Wanted("1"), False),
    ],
)
def test_remembers(said: Placement, wanted: Wanted, same: bool) -> None:
    assert remembers(said, wanted) == same
