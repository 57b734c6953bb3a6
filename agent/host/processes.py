"""What the kernel says of processes: `/proc/PID/status`."""

from __future__ import annotations

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
