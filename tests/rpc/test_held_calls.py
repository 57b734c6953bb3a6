import threading
from collections.abc import Callable

import pytest

from agent.rpc.held_calls import HeldCalls


class Clock:
    """Calls functions when the test says that their time has come."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == 0.5
        self.due.append(call)

    def turn(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


def test_held_calls_are_asked_again_in_order_until_they_are_released() -> None:
    clock, asked = Clock(), list[str]()
    held: HeldCalls[str] = HeldCalls(clock.after, seconds=0.5)
    for call in ("first", "second", "first"):
        assert held.hold(call, lambda call=call: asked.append(call))  # type: ignore[misc]
    assert (asked, len(clock.due), len(held)) == ([], 1, 2)
    clock.turn()
    clock.turn()
    assert asked == ["first", "second"] * 2
    assert held.release("first")
    assert not held.release("first")
    clock.turn()
    assert (asked[4:], list(held)) == (["second"], ["second"])
    held.release("second")
    clock.turn()
    assert (len(asked), clock.due) == (5, []), "no time is spent while no call is held"
    assert held.hold("third", lambda: None)
    assert len(clock.due) == 1


def test_a_call_that_another_released_is_not_asked() -> None:
    """The answer of the first breaks the connection of both."""
    held: HeldCalls[str] = HeldCalls()
    held.hold("first", lambda: held.release_all())
    held.hold("second", lambda: pytest.fail("asked"))
    held.ask_again()
    assert not held


def test_the_number_and_the_bytes_of_held_calls_are_bounded() -> None:
    held: HeldCalls[int] = HeldCalls(max_calls=3, max_bytes=100)
    assert held.hold(1, lambda: None, 60)
    assert not held.hold(2, lambda: None, 41)
    assert held.hold(2, lambda: None, 40)
    assert held.hold(1, lambda: None, 60), "a held call has its room"
    held.release(1)
    assert held.hold(3, lambda: None, 60)
    assert held.hold(4, lambda: None)
    assert not held.hold(5, lambda: None)
    assert held.release_all() == [2, 3, 4]
    assert held.hold(6, lambda: None, 100)


def test_a_thread_is_blocked_until_its_call_is_released() -> None:
    held: HeldCalls[str] = HeldCalls(seconds=0.001)
    asked, may_end = threading.Event(), threading.Event()

    def ask() -> None:
        asked.set()
        if may_end.is_set():
            held.release("call")

    thread = threading.Thread(target=held.block, args=("call", ask))
    thread.start()
    assert asked.wait(10)
    assert list(held) == ["call"]
    may_end.set()
    thread.join(10)
    assert not thread.is_alive()
    assert not held


def test_a_call_whose_question_fails_is_not_held_any_more() -> None:
    def ask() -> None:
        raise LookupError

    held: HeldCalls[str] = HeldCalls(seconds=0.001)
    with pytest.raises(LookupError):
        held.block("call", ask)
    assert not held
