"""Threads of this machine, and of folders with files as a kernel writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.usage import threads
from agent.usage.threads import SeenThread, Threads, last_cpu
from tests.waiting import eventually

STAT = "7 (a) b) S 1 7 7 0 -1 4194304 98 0 0 0 0 0 0 0 20 0 1 0 1 2 3 4 5 6 7 8 9 0 0 0 0 0 0 0 17 "


def write_thread(
    root: Path, thread: int, ran: int, *, name: str = "x", parent: int = 1, process: int = 0
) -> None:
    """`ran`: seconds, and how often it began to run."""
    folder = root / f"proc/{process or thread}/task/{thread}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"{ran}000000000 0 {ran}\n")
    (folder / "status").write_text(
        f"Name:\t{name}\nUmask:\t0022\nPPid:\t{parent}\nCpus_allowed_list:\t0-3\n"
    )
    (folder / "stat").write_text(f"{STAT}{thread % 4} 0 0\n")


def test_a_process_that_runs_is_seen_on_its_cpu() -> None:
    cpu = max(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin])
    try:
        reader = Threads("/")
        before = reader.times()

        def seen() -> bool:
            return any(
                thread.process == process.pid
                and thread.cpus == CpuSet([cpu])
                and thread.last_cpu == cpu
                and thread.ran_seconds > 0.05
                and not thread.kernel
                for thread in reader.since(before)
            )

        eventually("it has run there", seen)
    finally:
        process.kill()
        process.wait()
    assert os.getpid() not in {thread.process for thread in reader.since(before)}


def test_threads_of_the_kernel_are_told_from_others() -> None:
    by_name = {thread.name: thread for thread in Threads("/").since({})}
    if "ksoftirqd/0" not in by_name:
        pytest.skip("this machine does not show the kernel's threads")
    assert by_name["ksoftirqd/0"].kernel
    assert by_name["ksoftirqd/0"].cpus == CpuSet([0])
    assert by_name["kthreadd"].kernel


def test_what_each_thread_did_between_two_moments(tmp_path: Path) -> None:
    (tmp_path / "proc/2").mkdir(parents=True)
    (tmp_path / "proc/2/comm").write_text("kthreadd\n")
    (tmp_path / "proc/self").symlink_to("9")
    for thread, ran, parent in ((2, 1, 0), (5, 5, 2), (7, 3, 1), (9, 1, 1)):
        write_thread(tmp_path, thread, ran, parent=parent)
    reader = Threads(str(tmp_path))
    before = reader.times()
    write_thread(tmp_path, 7, 5)
    write_thread(tmp_path, 8, 4, name="new", process=7)
    write_thread(tmp_path, 9, 2)
    (tmp_path / "proc/10/task/10").mkdir(parents=True)
    cpus = CpuSet.parse("0-3")
    assert set(reader.since(before)) == {
        SeenThread(2, "x", True, cpus),
        SeenThread(5, "x", True, cpus),
        SeenThread(7, "x", False, cpus, 2.0, 2, 3),
        SeenThread(7, "new", False, cpus, 4.0, 4, 0),
    }, "9 is this process, and 10 has ended"


def test_in_a_container_no_thread_is_the_kernels(tmp_path: Path) -> None:
    write_thread(tmp_path, 3, 1, parent=2)
    (tmp_path / "proc/2").mkdir()
    (tmp_path / "proc/2/comm").write_text("nginx\n")
    assert [thread.kernel for thread in Threads(str(tmp_path)).since({})] == [False]


def test_of_many_threads_the_first_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MAX_THREADS", 2)
    for thread in (10, 3, 4):
        write_thread(tmp_path, thread, 1)
    reader = Threads(str(tmp_path))
    assert sorted(reader.times()) == [3, 4]
    assert [thread.process for thread in reader.since({})] == [3, 4]


@pytest.mark.parametrize(
    ("text", "cpu"),
    [(f"{STAT}31 0 0", 31), (f"{STAT}x 0", None), (STAT, None), ("7 (a", None), ("", None)],
)
def test_the_name_of_a_thread_may_contain_brackets(text: str, cpu: int | None) -> None:
    assert last_cpu(text) == cpu
