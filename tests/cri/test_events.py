"""With a real grpcio server that streams."""

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


class Heard:
    def __init__(self) -> None:
        self._notifier = threading.Semaphore(0)

    def __call__(self) -> None:
        self._notifier.release()

    def one_more(self) -> bool:
        return self._notifier.acquire(timeout=10)

    def forget(self) -> None:
        while self._notifier.acquire(blocking=False):
            pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@contextlib.contextmanager
def following(path: Path, heard: Heard) -> Iterator[ContainerEvents]:
    it = ContainerEvents(str(path), heard)
    try:
        yield it
    finally:
        it.close()


def test_a_call_refused_by_goaway_is_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a server that is just ending: GOAWAY before it started any call."""
    monkeypatch.setattr(events, "FIRST_PAUSE_SECONDS", 0.01)
    settings, goaway = bytes.fromhex("000000040000000000"), "000008070000000000" + 16 * "0"
    with socket.socket(socket.AF_UNIX) as ending:
        ending.bind(str(path))
        ending.listen()
        ending.settimeout(10)
        with following(path, Heard()):
            for _ in range(2):
                connection, _ = ending.accept()
                with connection:
                    connection.settimeout(10)
                    connection.sendall(settings + bytes.fromhex(goaway))
                    while connection.recv(4096):
                        pass


@pytest.mark.parametrize(
    ("name", "version", "everybody"),
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
    name: str, version: str, everybody: bool
) -> None:
    assert serves_all_callers(name, version) == everybody


def test_events_beyond_both_windows_are_all_received(path: Path) -> None:
    runtime, heard = Runtime(), Heard()
    with serving(path, runtime), following(path, heard) as it:
        assert runtime.subscribed.wait(10)
        for _ in range(40):
            runtime.queue.put(bytes(1 << 20))
        while not runtime.queue.empty():
            assert heard.one_more()
        assert it.streaming


def test_restarted_runtime_is_subscribed_again_and_both_are_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "FIRST_PAUSE_SECONDS", 0.01)
    first, second, heard = Runtime(), Runtime(), Heard()
    with serving(path, first), following(path, heard):
        assert first.subscribed.wait(10)
        heard.forget()
        first.queue.put(None)
        assert heard.one_more()
    with following(path, heard), serving(path, second):
        assert second.subscribed.wait(10)
        assert heard.one_more()


@pytest.mark.parametrize("runtime", [Runtime("v1.7.27"), Runtime(implemented=False)])
def test_runtime_without_events_is_logged_once_and_its_end_is_reported(
    path: Path, runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    heard = Heard()
    with contextlib.ExitStack() as stack:
        with serving(path, runtime):
            it = stack.enter_context(following(path, heard))
            assert heard.one_more()
            while not caplog.records:
                assert heard.one_more()
            assert not it.streaming
            assert runtime.asked.is_set() == runtime.version.startswith("v2")
            heard.forget()
        assert heard.one_more()
    assert [each.getMessage().rpartition(";")[2] for each in caplog.records] == [
        " cgroup events and passes replace them"
    ]
