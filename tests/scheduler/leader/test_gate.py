from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.kube.errors import ServerError
from agent.scheduler.leader.election import AlwaysLeader
from agent.scheduler.leader.gate import LeaderGate
from tests.waiting import eventually


class Leader:
    leading = False
    term = 0
    holder = ""
    continues = True
    lease_problem: str | None = None


class ClusterState:
    """The watches. They catch up when `may_catch_up` is set."""

    synced = False
    problems: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.may_catch_up = threading.Event()
        self.catch_ups = 0
        self.error: str | None = None
        self.stale_reason: str | None = None
        self.broken = False
        self.marks = 0

    def behind(self) -> str | None:
        return "the watch of pods" if self.broken else None

    def mark_behind(self) -> None:
        self.marks += 1

    def stale(self) -> str | None:
        return self.stale_reason

    def catch_up(self, wait: Callable[[float], bool]) -> bool:
        self.catch_ups += 1
        if self.error is not None:
            raise ServerError(self.error)
        while not self.may_catch_up.is_set():
            if wait(0.005):
                return False
        self.broken = False
        return True


class FormerBindings:
    """Bindings of the former process, which end when `may_end` is set."""

    def __init__(self) -> None:
        self.open = True
        self.may_end = threading.Event()
        self.continued: list[bool] = []

    def finish(self, continues: bool, wait: Callable[[float], bool]) -> bool:
        self.continued.append(continues)
        while not self.may_end.is_set():
            if wait(0.005):
                return False
        self.open = False
        return True


class Label:
    """The label of the pod. `problem`: why it may be wrong. `hurries`: the calls of `hurry`."""

    def __init__(self) -> None:
        self.hurries = 0
        self.problem: str | None = None

    def hurry(self) -> None:
        self.hurries += 1

    def unready(self) -> str | None:
        return self.problem


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def state() -> ClusterState:
    return ClusterState()


@contextlib.contextmanager
def started(
    leader: Leader | AlwaysLeader, state: ClusterState, **parts: Any
) -> Iterator[LeaderGate]:
    it = LeaderGate(leader, state, **parts)
    it.start()
    yield it
    it.stop()


@pytest.fixture
def gate(leader: Leader, state: ClusterState) -> Iterator[LeaderGate]:
    with started(leader, state) as it:
        yield it


def lead(leader: Leader, gate: LeaderGate, term: int) -> None:
    leader.term, leader.leading = term, True
    gate.begin()


def begin_term(gate: LeaderGate, leader: Leader, state: ClusterState) -> None:
    """Waits until the leader answers."""
    state.synced = True
    state.may_catch_up.set()
    lead(leader, gate, 1)
    eventually("the leader answers", lambda: gate.reason() is None)


def test_a_follower_answers_no_request_and_names_the_leader(
    gate: LeaderGate, leader: Leader
) -> None:
    assert gate.reason() == "no replica is the leader"
    leader.holder = "other"
    assert gate.reason() == "the leader is other"


def test_a_leader_answers_when_it_knows_the_earlier_bindings(
    gate: LeaderGate, leader: Leader, state: ClusterState
) -> None:
    lead(leader, gate, 1)
    state.problems = ("watch of /api/v1/pods: 403",)
    assert gate.reason() == "not all objects are listed yet; watch of /api/v1/pods: 403"
    state.synced = True
    assert gate.reason() == "the pods bound before this term are not known yet"
    state.may_catch_up.set()
    eventually("the leader answers", lambda: gate.reason() is None)


def test_each_term_begins_with_catching_up(
    gate: LeaderGate, leader: Leader, state: ClusterState
) -> None:
    begin_term(gate, leader, state)
    state.may_catch_up.clear()
    leader.leading = False
    assert gate.reason() == "no replica is the leader"
    lead(leader, gate, 2)
    assert gate.reason() == "the pods bound before this term are not known yet"
    state.may_catch_up.set()
    eventually("the leader answers", lambda: gate.reason() is None)


def test_a_leader_with_a_stale_watch_answers_no_request_until_it_recovers(
    gate: LeaderGate, leader: Leader, state: ClusterState
) -> None:
    begin_term(gate, leader, state)
    state.stale_reason = "the watch of pods has been out of touch for 31 s"
    assert gate.reason() == state.stale_reason
    leader.leading = False
    assert gate.reason() == f"no replica is the leader; {state.stale_reason}"
    leader.leading = True
    state.stale_reason = None
    assert gate.reason() is None


def test_a_broken_watch_catches_up_in_the_same_term(
    gate: LeaderGate, leader: Leader, state: ClusterState
) -> None:
    begin_term(gate, leader, state)
    state.broken = True
    assert gate.reason() is None, "all verbs but bind are answered"
    eventually("caught up", lambda: not state.broken)
    assert (state.catch_ups, state.marks) == (2, 1)


def test_the_callback_runs_before_the_first_answer(leader: Leader, state: ClusterState) -> None:
    reasons: list[str | None] = []
    with started(leader, state, settled=lambda: reasons.append(gate.reason())) as gate:
        begin_term(gate, leader, state)
    assert reasons == ["the pods bound before this term are not known yet"]


def test_a_leader_that_loses_the_lease_while_it_catches_up_starts_again(
    gate: LeaderGate, leader: Leader, state: ClusterState
) -> None:
    state.synced = True
    lead(leader, gate, 1)
    eventually("it catches up", lambda: state.catch_ups == 1)
    lead(leader, gate, 2)
    eventually("it catches up again", lambda: state.catch_ups == 2)
    assert state.marks == 2, "the leader in between may have bound pods"
    state.may_catch_up.set()
    eventually("the leader answers", lambda: gate.reason() is None)


def test_an_error_of_the_server_is_the_reason(
    gate: LeaderGate, leader: Leader, state: ClusterState
) -> None:
    state.synced, state.error = True, "GET /api/v1/pods: 500"
    lead(leader, gate, 1)
    eventually("the reason is reported", lambda: gate.reason() == "GET /api/v1/pods: 500")
    state.error = None
    state.may_catch_up.set()
    eventually("the leader answers", lambda: gate.reason() is None)


@pytest.mark.parametrize("continues", [True, False])
def test_a_leader_first_finishes_the_bindings_of_its_former_process(
    leader: Leader, state: ClusterState, continues: bool
) -> None:
    former = FormerBindings()
    state.synced = True
    state.may_catch_up.set()
    leader.continues = continues
    with started(leader, state, former=former) as gate:
        lead(leader, gate, 1)
        eventually("it finishes them", lambda: former.continued == [continues])
        assert gate.reason() == "the pods bound before this term are not known yet"
        assert state.catch_ups == 0
        assert gate.unready() == gate.reason()
        former.may_end.set()
        eventually("the leader answers", lambda: gate.reason() is None)
        assert state.marks == 2, "a watch may have listed its objects before the last Binding"
        lead(leader, gate, 2)
        eventually("the leader answers", lambda: gate.reason() is None)
        assert len(former.continued) == 1


def test_the_end_of_a_term_interrupts_the_former_bindings(
    leader: Leader, state: ClusterState
) -> None:
    former = FormerBindings()
    state.synced = True
    state.may_catch_up.set()
    with started(leader, state, former=former) as gate:
        lead(leader, gate, 1)
        eventually("it finishes them", lambda: len(former.continued) == 1)
        leader.leading = False
        former_open = former.open
        lead(leader, gate, 2)
        eventually("it starts again", lambda: len(former.continued) == 2)
        assert former_open
        assert state.catch_ups == 0


def test_a_single_replica_leads(state: ClusterState) -> None:
    state.synced = True
    state.may_catch_up.set()
    with started(AlwaysLeader(), state) as gate:
        eventually("the leader answers", lambda: gate.reason() is None)


def test_a_term_that_begins_before_the_start_marks_the_watches_as_behind(
    leader: Leader, state: ClusterState
) -> None:
    gate = LeaderGate(leader, state)
    lead(leader, gate, 1)
    assert state.marks == 1, "before the thread has started"


def test_with_a_label_a_standby_is_ready_when_all_objects_are_listed(
    leader: Leader, state: ClusterState
) -> None:
    gate = LeaderGate(leader, state, label=Label())
    state.problems = ("watch of /api/v1/pods: 403",)
    leader.holder = "other"
    assert gate.unready() == "not all objects are listed yet; watch of /api/v1/pods: 403"
    state.synced = True
    assert gate.unready() is None
    assert gate.reason() == "the leader is other"
    state.stale_reason = "the watch of pods has been out of touch for 31 s"
    assert gate.unready() == state.stale_reason
    state.stale_reason = None
    leader.lease_problem = "lease n/l: 403"
    assert gate.unready() == "lease n/l: 403"
    leader.leading = True
    assert gate.unready() == gate.reason()


def test_without_a_label_a_standby_is_not_ready(
    gate: LeaderGate, leader: Leader, state: ClusterState
) -> None:
    state.synced, leader.holder = True, "other"
    assert gate.unready() == "the leader is other"


def test_a_process_whose_label_may_be_wrong_is_not_ready(
    leader: Leader, state: ClusterState
) -> None:
    label = Label()
    with started(leader, state, label=label) as gate:
        begin_term(gate, leader, state)
        assert (label.hurries, gate.unready()) == (1, None)
        label.problem = "the label is not written yet"
        assert gate.unready() == label.problem
        leader.leading = False
        assert gate.unready() == label.problem
        assert gate.reason() == "no replica is the leader"
