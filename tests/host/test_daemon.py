"""Signals, failures, periodic threads, the service manager and memory of a daemon."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.daemon import (
    FaultError,
    Faults,
    Periodic,
    ServiceManager,
    seconds_to_boundary,
)
from tests.waiting import DEADLINE_SECONDS, eventually

PROGRAM = """
import os, signal
from agent.host.daemon import Ending

stops = []
with Ending(lambda: stops.append(1)):
    os.kill(os.getpid(), signal.{first})
assert stops == [1], stops
os.kill(os.getpid(), signal.{second})
assert stops == [1], stops
print("ended")
"""

PROXY = """
import os, signal, socket, sys
from agent.model.settings.frontends import ProxySettings
from agent.proxy import daemon
from agent.telemetry import logs

logs.start("info")
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1] + "/cri.sock")
    listening.listen()
    at = sys.argv[1] + "/cri.sock"
    settings = ProxySettings(state_dir=sys.argv[1], runtime_endpoint=at, http="")
    daemon.run(settings, listening)
    os.kill(os.getpid(), signal.SIGTERM)
print("ended")
"""


def output_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGINT"), ("SIGINT", "SIGTERM")])
def test_the_second_signal_is_ignored(first: str, second: str) -> None:
    assert output_of(PROGRAM.format(first=first, second=second)) == "ended\n"


def test_the_proxy_ignores_a_second_signal_while_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROXY, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as proxy:
        assert proxy.stderr is not None
        assert "proxy listens" in proxy.stderr.readline()
        proxy.terminate()
        out, errors = proxy.communicate(timeout=20)
    assert (proxy.returncode, out, errors) == (0, "ended\n", "")


def fail() -> None:
    raise ValueError("broken")


def run(target: object, name: str) -> None:
    thread = threading.Thread(target=target, name=name)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_a_thread_that_fails_ends_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def daemon() -> None:
        with Faults(ended.set):
            run(fail, "first")
            assert ended.is_set()
            run(fail, "second")

    with pytest.raises(FaultError, match=r"thread first has failed: ValueError\('broken'\)"):
        daemon()
    assert caplog.text.count("Traceback") == 2


def test_threads_that_end_normally_do_not_end_the_daemon() -> None:
    ended, before = threading.Event(), threading.excepthook
    with Faults(ended.set):
        run(int, "normal")
    assert not ended.is_set()
    assert threading.excepthook is before


def test_a_failure_of_the_main_thread_is_not_hidden() -> None:
    def daemon() -> None:
        with Faults(lambda: None):
            run(fail, "other")
            raise KeyError

    with pytest.raises(KeyError):
        daemon()


def test_steps_are_repeated_until_the_stop() -> None:
    steps: list[str] = []
    it = Periodic("steps", 0.001, lambda: steps.append(threading.current_thread().name))
    it.start()
    eventually("several steps", lambda: len(steps) > 2)
    it.stop()
    assert set(steps) == {"steps"}
    assert "steps" not in {each.name for each in threading.enumerate()}


@given(
    period=st.sampled_from((0.5, 1.0, 10.0)),
    number=st.integers(0, 10**6),
    fractions=st.lists(st.floats(0.01, 0.99), min_size=2, max_size=2),
)
def test_threads_of_one_period_wake_at_the_same_moment_and_none_later_than_a_period(
    period: float, number: int, fractions: list[float]
) -> None:
    ends = [(number + fraction) * period for fraction in fractions]
    first, second = (seconds_to_boundary(each, period) for each in ends)
    assert ends[0] + first == pytest.approx(ends[1] + second)
    assert 0 < first <= period


def test_threads_that_started_at_different_moments_step_together() -> None:
    started: tuple[list[float], list[float]] = ([], [])
    both = [
        Periodic("steps", 0.25, lambda times=times: times.append(time.monotonic()))
        for times in started
    ]
    both[0].start()
    time.sleep(0.125)  # as far from the steps of the other thread as possible
    both[1].start()

    eventually("eight steps of each", lambda: min(map(len, started)) > 8)
    for each in both:
        each.stop()
    differences = [abs(one - other) for one in started[0][1:] for other in started[1][1:]]
    assert min(differences) < 0.03


def test_a_pause_of_any_length_ends_with_the_stop() -> None:
    stepped = threading.Event()
    it = Periodic("slow", 1e6, stepped.set)
    it.start()
    assert stepped.wait(DEADLINE_SECONDS), "the first step begins at once"
    it.stop()


def test_a_stop_waits_for_the_step_in_progress() -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        assert released.wait(DEADLINE_SECONDS)
        ended.set()

    it = Periodic("long", 1e6, step)
    it.start()
    assert begun.wait(DEADLINE_SECONDS)
    stopping = threading.Thread(target=it.stop)
    stopping.start()
    released.set()
    stopping.join()
    assert ended.is_set()


def test_a_requested_step_begins_before_its_period_and_after_the_settle_time() -> None:
    steps: list[float] = []
    it = Periodic("requested", 1e6, lambda: steps.append(time.monotonic()), 0.1)
    it.start()
    eventually("the first step", lambda: steps)
    time.sleep(0.15)  # longer than the settle time
    requested_at = time.monotonic()
    it.hurry()
    it.hurry()
    eventually("the requested step", lambda: len(steps) == 2)
    it.stop()
    assert steps[1] - requested_at >= 0.1


def test_a_step_that_is_requested_at_once_does_not_wait_for_the_settle_time() -> None:
    steps: list[float] = []
    it = Periodic("requested", 1e6, lambda: steps.append(time.monotonic()), 1e5)
    it.start()
    eventually("the first step", lambda: steps)
    it.hurry()
    it.hurry(at_once=True)
    eventually("the requested step", lambda: len(steps) == 2)
    it.stop()


def test_a_stop_ends_the_pause_after_a_request() -> None:
    stepped = threading.Event()
    it = Periodic("slow", 1e6, stepped.set, 1e5)
    it.start()
    assert stepped.wait(DEADLINE_SECONDS)
    it.hurry()
    it.stop()


def test_a_stop_waits_only_for_its_timeout() -> None:
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()

    def step() -> None:
        begun.set()
        released.wait(DEADLINE_SECONDS)
        ended.set()

    it = Periodic("hangs", 1e6, step)
    it.start()
    assert begun.wait(DEADLINE_SECONDS)
    it.stop(0.0)
    assert not ended.is_set()
    released.set()
    it.stop()
    assert ended.is_set()


def test_a_thread_that_never_started_can_be_stopped() -> None:
    Periodic("never", 1.0, lambda: None).stop()


def listening(address: str) -> socket.socket:
    it = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    it.bind(address)
    it.settimeout(5)
    return it


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_receives_notifications(tmp_path: Path, abstract: bool) -> None:
    name = f"@topolet-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "500000"}
    with listening("\0" + name[1:] if abstract else name) as it:
        manager = ServiceManager(environment)
        manager.ready()
        manager.alive()
        manager.stopping()
        assert [it.recv(64) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert manager.watchdog_seconds == 0.5
    assert environment == {}


def test_readiness_waits_for_room_in_the_queue_of_the_service_manager(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    with listening(name) as it:
        manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "500000"})
        for _ in range(1000):
            manager.alive()
        readiness = threading.Thread(target=manager.ready)
        readiness.start()
        while it.recv(64) != b"READY=1":
            pass
        readiness.join()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "invalid"},
        {"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "500000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "500000"},
    ],
)
def test_without_a_service_manager_nothing_fails(environment: dict[str, str]) -> None:
    manager = ServiceManager(environment)
    manager.ready()
    assert manager.watchdog_seconds is None


HEAPS = """
import ctypes, threading
from agent.host import daemon
{}
libc = ctypes.CDLL(None)
barrier = threading.Barrier(4)
def allocate():
    libc.malloc(1000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def heaps(setup: str) -> int:
    return output_of(HEAPS.format(setup)).count("<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc")
def test_threads_share_one_heap() -> None:
    assert heaps("") > 1
    assert heaps("daemon.use_one_malloc_arena()") == 1


BLOCKS = """
import ctypes
from agent.host import daemon
{}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def rss_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
def block():
    address = libc.malloc(8 << 20)
    ctypes.memset(address, 1, 8 << 20)
    return ctypes.c_void_p(address)
before = rss_mb()
libc.free(block())  # glibc adapts its threshold for mmap to the first block that is freed
blocks = [block() for _ in range(2)]
libc.malloc(500_000)  # stays allocated above the blocks
for each in blocks:
    libc.free(each)
print(rss_mb() - before)
"""


def kept_mb(setup: str) -> float:
    return float(output_of(BLOCKS.format(setup)))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="needs glibc")
def test_large_blocks_are_returned_to_the_kernel() -> None:
    assert kept_mb("") > 4
    assert kept_mb("daemon.return_large_blocks()") < 1
