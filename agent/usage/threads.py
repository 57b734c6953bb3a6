"""The threads of a machine: how long and how often each ran between two moments, where it may run,
and on which CPU it ran last (proc_pid_schedstat, proc_pid_status(5), proc_pid_stat(5))."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.usage.schedstat import ThreadTimes, thread_times

MAX_THREADS: Final = 16_384
"""So many threads are read, those of the processes with the lowest ids first."""
_KERNEL_PARENT: Final = 2
"""The id of kthreadd, whose children all kernel threads are."""
_PROCESSOR: Final = 36
"""The field of the CPU in a stat file, counted from the one after the name."""


class SeenThread(msgspec.Struct, frozen=True):
    """A thread, and what it did between two moments."""

    process: int
    name: str
    """It chooses its own, of 15 bytes, unless it is the kernel's."""
    kernel: bool
    cpus: CpuSet
    """Where it may run."""
    ran_seconds: float = 0.0
    runs: int = 0
    """How often a CPU began to run it; 0 also for one that ran all the time."""
    last_cpu: int | None = None
    """Where it ran last; None if it did not run."""


class Threads:
    """Reads the files below a root. What has ended is left out."""

    def __init__(self, root: str) -> None:
        self._tree = Tree(root)

    def times(self) -> dict[int, ThreadTimes]:
        """The times of each thread by its id; without those of kernels that have no schedstat."""
        return {
            thread: times
            for process, thread in islice(self._ids(), MAX_THREADS)
            if (times := self._times(process, thread)) is not None
        }

    def since(self, before: Mapping[int, ThreadTimes]) -> tuple[SeenThread, ...]:
        """The threads of now but those of this process, with what they did since those times were
        read. A thread that is new has run all its time since then."""
        kernel = (self._text(f"proc/{_KERNEL_PARENT}/comm") or "") == "kthreadd"
        own = self._tree.link("proc/self")
        sets: dict[str, CpuSet] = {}
        seen = (
            self._seen(process, thread, before.get(thread, _NONE), sets, kernel=kernel)
            for process, thread in islice(self._ids(), MAX_THREADS)
            if str(process) != own
        )
        return tuple(thread for thread in seen if thread is not None)

    def _seen(
        self,
        process: int,
        thread: int,
        before: ThreadTimes,
        sets: dict[str, CpuSet],
        *,
        kernel: bool,
    ) -> SeenThread | None:
        """`sets`: has CPU lists that were parsed already: most threads have the same.
        `kernel`: says whether this procfs shows the kernel's threads."""
        folder = f"proc/{process}/task/{thread}"
        times = self._times(process, thread)
        status = self._text(f"{folder}/status") or ""
        listed = _field(status, "Cpus_allowed_list")
        if listed not in sets:
            try:
                sets[listed] = CpuSet.parse(listed)
            except CpuSetError:
                return None
        of_kernel = kernel and str(_KERNEL_PARENT) in (str(process), _field(status, "PPid"))
        name = _field(status, "Name")
        if times is None or times == before or not status:
            return SeenThread(process, name, of_kernel, sets[listed]) if status else None
        return SeenThread(
            process,
            name,
            of_kernel,
            sets[listed],
            max(0.0, times.ran_seconds - before.ran_seconds),
            max(0, times.runs - before.runs),
            last_cpu(self._text(f"{folder}/stat") or ""),
        )

    def _ids(self) -> Iterator[tuple[int, int]]:
        """The ids of processes and of their threads."""
        for process in sorted(int(name) for name in self._tree.names("proc") if name.isdecimal()):
            for thread in self._tree.names(f"proc/{process}/task"):
                yield process, int(thread)

    def _times(self, process: int, thread: int) -> ThreadTimes | None:
        return thread_times(self._text(f"proc/{process}/task/{thread}/schedstat") or "")

    def _text(self, path: str) -> str | None:
        try:
            return self._tree.text(path)
        except OSError:  # ESRCH: it has ended since its folder was opened
            return None


_NONE: Final = ThreadTimes(0.0, 0.0, 0)


def last_cpu(stat: str) -> int | None:
    """The CPU on which a thread ran last, from the text of its stat file; None for a text of
    another form. Its name, which it chooses, may contain blanks and brackets."""
    words = stat.rpartition(")")[2].split()
    if len(words) <= _PROCESSOR or not words[_PROCESSOR].isdecimal():
        return None
    return int(words[_PROCESSOR])


def _field(status: str, name: str) -> str:
    """The value of a line of a status file; "" without it. The kernel escapes a line end in the
    thread's name."""
    _, _, rest = f"\n{status}".partition(f"\n{name}:")
    return rest.partition("\n")[0].strip()
