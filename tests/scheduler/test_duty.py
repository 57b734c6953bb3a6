from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from agent.kube.errors import ServerError
from agent.scheduler.duty import Alone, Duty
from tests.waiting import eventually


class Leader:
    leading = False
    term = 0
    holder = ""


class State:
    """Catches up when the test lets it."""

    synced = False
    troubles: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.may_catch_up = threading.Event()
        self.asked = 0
        self.error: str | None = None

    def catch_up(self, wait: Callable[[float], bool]) -> bool:
        self.asked += 1
        if self.error is not None:
            raise ServerError(self.error)
        while not self.may_catch_up.is_set():
            if wait(0.005):
                return False
        return True


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def duty(leader: Leader, state: State) -> Iterator[Duty]:
    it = Duty(leader, state)
    it.start()
    yield it
    it.stop()


def lead(leader: Leader, duty: Duty, term: int) -> None:
    leader.term, leader.leading = term, True
    duty.begin()


def test_a_follower_answers_nothing_and_says_who_leads(duty: Duty, leader: Leader) -> None:
    assert duty.reason() == "nobody leads"
    leader.holder = "other"
    assert duty.reason() == "other leads"


def test_a_leader_answers_when_it_knows_what_was_bound_before(
    duty: Duty, leader: Leader, state: State
) -> None:
    lead(leader, duty, 1)
    state.troubles = ("watch of /api/v1/pods: 403",)
    assert duty.reason() == "not all objects are known yet; watch of /api/v1/pods: 403"
    state.synced = True
    assert duty.reason() == "what was bound before is not known yet"
    state.may_catch_up.set()
    eventually("on duty", lambda: duty.reason() is None)


def test_each_term_begins_with_catching_up(duty: Duty, leader: Leader, state: State) -> None:
    state.synced = True
    state.may_catch_up.set()
    lead(leader, duty, 1)
    eventually("on duty", lambda: duty.reason() is None)
    state.may_catch_up.clear()
    leader.leading = False
    assert duty.reason() == "nobody leads"
    lead(leader, duty, 2)
    assert duty.reason() == "what was bound before is not known yet"
    state.may_catch_up.set()
    eventually("on duty", lambda: duty.reason() is None)


def test_what_is_known_is_settled_before_the_first_answer(leader: Leader, state: State) -> None:
    reasons: list[str | None] = []
    duty = Duty(leader, state, lambda: reasons.append(duty.reason()))
    duty.start()
    state.synced = True
    state.may_catch_up.set()
    lead(leader, duty, 1)
    eventually("on duty", lambda: duty.reason() is None)
    duty.stop()
    assert reasons == ["what was bound before is not known yet"]


def test_who_loses_the_lease_while_it_catches_up_begins_again(
    duty: Duty, leader: Leader, state: State
) -> None:
    state.synced = True
    lead(leader, duty, 1)
    eventually("asked", lambda: state.asked == 1)
    lead(leader, duty, 2)
    eventually("asked again", lambda: state.asked == 2)
    state.may_catch_up.set()
    eventually("on duty", lambda: duty.reason() is None)


def test_why_it_can_not_be_asked_is_said(duty: Duty, leader: Leader, state: State) -> None:
    state.synced, state.error = True, "GET /api/v1/pods: 500"
    lead(leader, duty, 1)
    eventually("said", lambda: duty.reason() == "GET /api/v1/pods: 500")
    state.error = None
    state.may_catch_up.set()
    eventually("on duty", lambda: duty.reason() is None)


def test_the_only_one_leads(state: State) -> None:
    duty = Duty(Alone(), state)
    duty.start()
    state.synced = True
    state.may_catch_up.set()
    eventually("on duty", lambda: duty.reason() is None)
    duty.stop()
