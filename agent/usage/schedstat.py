"""How long threads ran, and how long they waited to run, by /proc/PID/schedstat
(Documentation/scheduler/sched-stats.rst)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.host.files import Tree
from agent.host.log_once import Once
from agent.model.cpu.cpuset import CpuSet, CpuSetError

log = logging.getLogger(__name__)

MAX_THREADS: Final = 2048
"""So many threads are read at one moment. Of more threads, each n-th is read and counts n times."""
_MAX_KERNEL_THREADS: Final = 8192
_KERNEL_PARENT: Final = "kthreadd"
"""All kernel threads are its children."""
_KERNEL_PARENT_ID: Final = "2"
_SECONDS: Final = 1e-9


class ThreadTimes(msgspec.Struct, frozen=True):
    """What the kernel has counted for a thread."""

    ran_seconds: float
    delay_seconds: float
    """How long it could have run and did not."""
    runs: int = 0
    """How often a CPU began to run it."""


class KernelThread(msgspec.Struct, frozen=True):
    name: str
    cpus: CpuSet
    """Where it may run."""


def queue_name(thread: str) -> str:
    """The name of a kernel thread; that of a worker has its CPU or pool and its queue, since a
    worker is named with the queue that it works (+) or has worked for (-)."""
    return _WORKER.sub(r"\1-", thread).rstrip("-")


_WORKER: Final = re.compile(r"(kworker/u?\d+):\d+H?[-+]?")


def thread_times(schedstat: str) -> ThreadTimes | None:
    """From the text of a schedstat file; None for a text of another form."""
    words = schedstat.split()[:_FIELDS]
    if len(words) < _FIELDS or not all(_NUMBER.fullmatch(word) for word in words):
        return None
    ran, delay, runs = map(int, words)
    return ThreadTimes(ran * _SECONDS, delay * _SECONDS, runs)


_FIELDS: Final = 3
_NUMBER: Final = re.compile(r"[0-9]{1,20}", re.ASCII)  # of 64 bits


class Delays(msgspec.Struct, frozen=True):
    """The delays of some threads at one moment."""

    every: int = 1
    """Each of these threads stands for so many."""
    seconds: Mapping[str, Mapping[int, float]] = {}
    """By cgroup and id of the thread."""

    def since(self, before: Delays, group: str) -> float | None:
        """How long the threads of a group have waited between the two moments; None if not both are
        known. The waits of threads that have ended in between are not known."""
        if group not in self.seconds or group not in before.seconds:
            return None
        if self.every != before.every:
            return None
        seconds_before = before.seconds[group]
        waited = sum(
            max(0.0, seconds - seconds_before.get(thread, 0.0))
            for thread, seconds in self.seconds[group].items()
        )
        return self.every * waited


class Schedstat:
    """Reads the files below a root. What has ended is left out."""

    def __init__(self, root: str) -> None:
        self._tree = Tree(root)
        self._absent = Once(log)
        self._kernel_threads: frozenset[int] = frozenset()

    def delays(self, threads: Mapping[str, Iterable[int]]) -> Delays:
        """`threads`: their ids by cgroup."""
        ids = {group: tuple(of_group) for group, of_group in threads.items()}
        every = -(-sum(map(len, ids.values())) // MAX_THREADS) or 1
        return Delays(
            every,
            {
                group: {
                    thread: times.delay_seconds
                    for thread in of_group
                    if thread % every == 0 and (times := self._times(thread)) is not None
                }
                for group, of_group in ids.items()
            },
        )

    def kernel_threads(self) -> dict[int, float]:
        """How long each kernel thread has run, by its id."""
        # In the pid namespace of a container another process has its id.
        parent = f"proc/{_KERNEL_PARENT_ID}"
        is_kernel = self._text(f"{parent}/comm") == _KERNEL_PARENT
        children = self._text(f"{parent}/task/{_KERNEL_PARENT_ID}/children") if is_kernel else None
        if children is None:
            self._absent.report("this kernel does not list its threads: none can be named")
            return {}
        listed = [int(word) for word in children.split() if word.isdecimal()][:_MAX_KERNEL_THREADS]
        # While threads end, the kernel's list lacks others, which still run (get_children_pid).
        missing = self._kernel_threads.difference(listed)
        threads = {
            thread: times.ran_seconds
            for thread in (*listed, *filter(self._is_kernel_thread, missing))
            if (times := self._times(thread)) is not None
        }
        self._kernel_threads = frozenset(threads)
        return threads

    def kernel_thread(self, thread: int) -> KernelThread | None:
        """Returns the name and CPUs of the thread; None if it has ended."""
        fields = self._status(thread)
        try:
            cpus = CpuSet.parse(fields["Cpus_allowed_list"])
        except (KeyError, CpuSetError):
            return None
        return KernelThread(fields.get("Name", "").strip(), cpus)

    def _is_kernel_thread(self, thread: int) -> bool:
        return self._status(thread).get("PPid", "").strip() == _KERNEL_PARENT_ID

    def _status(self, thread: int) -> dict[str, str]:
        status = self._text(f"proc/{thread}/status") or ""
        return dict(line.partition(":")[::2] for line in status.splitlines())

    def _times(self, thread: int) -> ThreadTimes | None:
        return thread_times(self._text(f"proc/{thread}/schedstat") or "")

    def _text(self, path: str) -> str | None:
        try:
            return self._tree.text(path)
        except OSError:  # ESRCH: it has ended since its folder was opened
            return None
