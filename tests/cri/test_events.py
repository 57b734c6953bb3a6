"""The stream of container events, from a real grpcio server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cri import events
from agent.cri.events import ContainerEvents, serves_all_callers
from tests.cri.event_stream import Runtime, serving


class Trigger:
    def __init__(self) -> None:
        self._calls = threading.Semaphore(0)

    def __call__(self) -> None:
        self._calls.release()

    def wait(self) -> bool:
        return self._calls.acquire(timeout=10)

    def clear(self) -> None:
        while self._calls.acquire(blocking=False):
            pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@contextlib.contextmanager
def following(path: Path, trigger: Trigger) -> Iterator[ContainerEvents]:
    it = ContainerEvents(str(path), trigger)
    try:
        yield it
    finally:
        it.close()


def test_a_call_refused_by_goaway_is_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends sends GOAWAY before it starts any call."""
    monkeypatch.setattr(events, "FIRST_PAUSE_SECONDS", 0.01)
    settings, goaway = bytes.fromhex("000000040000000000"), "000008070000000000" + 16 * "0"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(10)
        with following(path, Trigger()):
            for _ in range(2):
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(10)
                    connection.sendall(settings + bytes.fromhex(goaway))
                    while connection.recv(4096):
                        pass


@pytest.mark.parametrize(
    ("name", "version", "all_callers"),
    [
        ("containerd", "v2.2.7", True),
        ("containerd", "2.0.0-rc.1", True),
        ("containerd", "10.1.0", True),
        ("containerd", "v1.7.27", False),
        ("containerd", "1.6.20~ds1", False),
        ("containerd", "unknown", False),
        ("cri-o", "2.0.0", False),
        ("containerd", "9" * 5_000 + ".0", False),
    ],
)
def test_only_runtimes_that_serve_all_callers_are_subscribed(
    name: str, version: str, all_callers: bool
) -> None:
    assert serves_all_callers(name, version) == all_callers


def test_events_beyond_both_windows_are_all_received(path: Path) -> None:
    runtime, trigger = Runtime(), Trigger()
    with serving(path, runtime), following(path, trigger) as it:
        assert runtime.subscribed.wait(10)
        for _ in range(40):
            runtime.queue.put(bytes(1 << 20))
        while not runtime.queue.empty():
            assert trigger.wait()
        assert it.streaming


def test_a_restarted_runtime_is_subscribed_again_and_end_and_start_are_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "FIRST_PAUSE_SECONDS", 0.01)
    first, second, trigger = Runtime(), Runtime(), Trigger()
    with serving(path, first), following(path, trigger):
        assert first.subscribed.wait(10)
        trigger.clear()
        first.queue.put(None)
        assert trigger.wait()
    with following(path, trigger), serving(path, second):
        assert second.subscribed.wait(10)
        assert trigger.wait()


@pytest.mark.parametrize("runtime", [Runtime("v1.7.27"), Runtime(implemented=False)])
def test_runtime_without_events_is_logged_once_and_its_end_is_reported(
    path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    trigger = Trigger()
    with contextlib.ExitStack() as stack:
        with serving(path, runtime):
            it = stack.enter_context(following(path, trigger))
            assert trigger.wait()
            while not caplog.records:
                assert trigger.wait()
            assert not it.streaming
            assert runtime.called.is_set() == runtime.version.startswith("v2")
            trigger.clear()
        assert trigger.wait()
    assert [each.getMessage().rpartition(";")[2] for each in caplog.records] == [
        " cgroup events and passes replace them"
    ]
