import os
import threading
import time
from collections.abc import Iterator

import pytest

from agent.host.loop import READ, WRITE, Loop

Pipe = tuple[int, int]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_a_ready_descriptor_is_called_until_it_is_unregistered(loop: Loop, pipe: Pipe) -> None:
    reading, writing = pipe
    data: list[bytes] = []

    def ready(events: int) -> None:
        assert events & READ
        data.append(os.read(reading, 1))
        if len(data) == 2:
            loop.unregister(reading)
            loop.stop()

    loop.register(reading, READ, ready)
    os.write(writing, b"abc")
    loop.run()
    assert data == [b"a", b"b"]
    loop.step(0)
    assert len(data) == 2


def test_a_callback_may_unregister_another_that_is_ready_too(loop: Loop) -> None:
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def handler(own: int, other: int) -> None:
        called.append(own)
        loop.unregister(other)

    first, second = pipes[0][0], pipes[1][0]
    loop.register(first, READ, lambda events: handler(first, second))
    loop.register(second, READ, lambda events: handler(second, first))
    for _, writing in pipes:
        os.write(writing, b"x")
    loop.step(1)
    assert len(called) == 1
    for fd in (*pipes[0], *pipes[1]):
        os.close(fd)


def test_modify_changes_the_awaited_events(loop: Loop, pipe: Pipe) -> None:
    _, writing = pipe
    received_events: list[int] = []
    loop.register(writing, READ, received_events.append)
    loop.step(0)
    assert received_events == []
    loop.modify(writing, WRITE)
    loop.step(1)
    assert received_events == [WRITE]


def test_timers_come_in_order_and_cancelled_ones_do_not(loop: Loop) -> None:
    called: list[str] = []
    now = time.monotonic()
    loop.at(now + 0.02, lambda: called.append("second"))
    loop.at(now + 0.01, lambda: called.append("cancelled")).cancel()
    loop.at(now, lambda: called.append("first"))
    loop.at(now + 0.03, loop.stop)
    loop.run()
    assert called == ["first", "second"]
    assert time.monotonic() >= now + 0.03


def test_a_timer_that_sets_an_immediate_timer_does_not_starve_descriptors(
    loop: Loop, pipe: Pipe
) -> None:
    reading, writing = pipe

    def again() -> None:
        loop.after(0, again)

    loop.after(0, again)
    loop.register(reading, READ, lambda events: loop.stop())
    os.write(writing, b"x")
    loop.run()


def test_another_thread_stops_a_waiting_loop(loop: Loop) -> None:
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_a_stopped_loop_that_runs_on_does_not_spin(loop: Loop) -> None:
    loop.stop()
    loop.run()
    checks: list[float] = []

    def until() -> bool:
        checks.append(time.monotonic())
        return False

    loop.run_on(until, 0.1)
    assert len(checks) <= 3


def test_a_thread_that_calls_while_the_loop_closes_uses_no_closed_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, write = Loop(), os.eventfd_write
    closing = threading.Thread(target=loop.close)

    def delayed(descriptor: int, value: int) -> None:
        closing.start()
        closing.join(0.2)
        write(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", delayed)
    loop.call(lambda: None)
    closing.join()
