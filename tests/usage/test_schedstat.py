"""Run-queue delays of real threads, and torn files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.usage import schedstat
from agent.usage.schedstat import Delays, Schedstat, ThreadTimes, thread_times
from tests.waiting import eventually


def test_two_processes_on_one_cpu_wait_for_each_other() -> None:
    cpu = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        threads = {"/both": [process.pid for process in processes]}
        reader = Schedstat("/")
        before = reader.delays(threads)

        def waited() -> bool:
            delay = reader.delays(threads).since(before, "/both")
            return delay is not None and delay > 0.05

        eventually("both have waited", waited)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    ended = reader.delays(threads)
    assert ended.seconds == {"/both": {}}, "what has ended is left out"


def test_of_too_many_threads_each_nth_counts_n_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedstat, "MAX_THREADS", 4)
    for thread in range(1, 9):
        (tmp_path / f"proc/{thread}").mkdir(parents=True)
        (tmp_path / f"proc/{thread}/schedstat").write_text(f"0 {thread}000000000 1\n")
    reader = Schedstat(str(tmp_path))
    delays = reader.delays({"/a": range(1, 9)})
    assert (delays.every, delays.seconds) == (2, {"/a": {2: 2.0, 4: 4.0, 6: 6.0, 8: 8.0}})
    assert delays.since(Delays(2, {"/a": {2: 1.0, 4: 4.0, 6: 6.0, 8: 8.0}}), "/a") == 2.0
    assert delays.since(Delays(1, {"/a": {}}), "/a") is None, "other threads were read"
    assert delays.since(Delays(2), "/a") is None


def test_a_new_thread_has_waited_all_since_then() -> None:
    before, now = Delays(1, {"/a": {1: 5.0}}), Delays(1, {"/a": {1: 5.5, 2: 0.25}})
    assert now.since(before, "/a") == 0.75


def test_the_kernel_has_threads_with_names_and_cpus() -> None:
    reader = Schedstat("/")
    threads = reader.kernel_threads()
    if not threads:
        pytest.skip("this machine does not show the kernel's threads")
    softirq = (reader.kernel_thread(thread) for thread in threads)
    thread = next(
        kernel_thread
        for kernel_thread in softirq
        if kernel_thread and kernel_thread.name == "ksoftirqd/0"
    )
    assert str(thread.cpus) == "0"


def test_a_thread_that_the_kernel_left_out_of_its_list_stays(tmp_path: Path) -> None:
    children = tmp_path / "proc/2/task/2/children"
    children.parent.mkdir(parents=True)
    (tmp_path / "proc/2/comm").write_text("kthreadd\n")
    for thread, parent in ((3, 2), (4, 1)):
        (tmp_path / f"proc/{thread}").mkdir()
        (tmp_path / f"proc/{thread}/schedstat").write_text("5000000000 0 1\n")
        (tmp_path / f"proc/{thread}/status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
    reader = Schedstat(str(tmp_path))
    children.write_text("3 4 5 ")
    assert reader.kernel_threads() == {3: 5.0, 4: 5.0}
    children.write_text("6 ")
    assert reader.kernel_threads() == {3: 5.0}, "another process has the other id now"


def test_torn_files_have_no_times(tmp_path: Path) -> None:
    assert thread_times("1000000000 2000000000 3") == ThreadTimes(1.0, 2.0, 3)
    for text in ("", "1 2", "x 2 3", "-1 2 3", "1 2 x", f"{10**400} 2 3"):
        assert thread_times(text) is None
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/status").write_text("Name:\tx\nCpus_allowed_list:\t9-1\n")
    reader = Schedstat(str(tmp_path))
    assert reader.kernel_thread(7) is None
    assert reader.kernel_threads() == {}
