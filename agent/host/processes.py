"""What the kernel says of processes: `/proc/PID`."""

from __future__ import annotations

import os
from collections.abc import Iterator

_ALLOWED = "Cpus_allowed_list:"


def allowed_cpus(proc: str, pid: int) -> str | None:
    """The CPUs that a process may run on, as a Linux list: its own affinity within its cpuset. None
    of one that is gone."""
    try:
        with open(f"{proc}/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(_ALLOWED):
                    return line.removeprefix(_ALLOWED).strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None


def named(proc: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Processes whose program has this name, by pid: pid and command line. Raises OSError where
    there is no procfs."""
    for pid in sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit()):
        try:
            with open(f"{proc}/{pid}/cmdline", "rb") as file:
                words = os.fsdecode(file.read()).rstrip("\0").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.path.basename(words[0]) == name:
            yield pid, words
