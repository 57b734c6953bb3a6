from __future__ import annotations

import threading

import pytest

from agent.host.ending import FaultError, Faults


def fails() -> None:
    raise ValueError("odd")


def run(target: object, name: str) -> None:
    thread = threading.Thread(target=target, name=name)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_a_thread_that_fails_ends_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def daemon() -> None:
        with Faults(ended.set):
            run(fails, "first")
            assert ended.is_set()
            run(fails, "second")

    with pytest.raises(FaultError, match=r"thread first has failed: ValueError\('odd'\)"):
        daemon()
    assert caplog.text.count("Traceback") == 2


def test_threads_that_end_well_end_nothing() -> None:
    ended, before = threading.Event(), threading.excepthook
    with Faults(ended.set):
        run(int, "well")
    assert not ended.is_set()
    assert threading.excepthook is before


def test_what_fails_in_the_main_thread_is_not_hidden() -> None:
    def daemon() -> None:
        with Faults(lambda: None):
            run(fails, "other")
            raise KeyError

    with pytest.raises(KeyError):
        daemon()
