"""A generated /proc with the files that the search for a kubelet reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

HOST = "0::/system.slice/kubelet.service\n"
POD = "0::/kubepods.slice/kubepods-podX.slice/cri-containerd-ID.scope\n"


def process(
    root: Path,
    pid: int,
    *argv: str | bytes,
    name: str | None = None,
    uids: str = "0 0 0 0",
    pids: Sequence[int] | None = None,
    parent: int = 0,
    groups: str = HOST,
) -> Path:
    """Adds a running process; returns its folder. `pids`: its pids, one for each PID namespace."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    raw = [each if isinstance(each, bytes) else each.encode() for each in argv]
    (folder / "cmdline").write_bytes(b"".join(each + b"\0" for each in raw))
    first = raw[0].rpartition(b"/")[2] if raw else b"kworker"
    (folder / "comm").write_bytes((first if name is None else name.encode())[:15] + b"\n")
    (folder / "cgroup").write_text(groups)
    numbers = "\t".join(str(each) for each in (pids or (pid,)))
    (folder / "status").write_text(
        f"Name:\tx\nPPid:\t{parent}\nUid:\t{uids.replace(' ', chr(9))}\n"
        f"Groups:\t0 \nNSpid:\t{numbers}\nCpus_allowed_list:\t0-3\n"
    )
    return folder
