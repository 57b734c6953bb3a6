"""The koordlet of this node, and the gates with which it writes values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.node.koordlet_process import KoordletProcess, find, gates

DEFAULTS = {"CPUBurst": True, "CgroupReconcile": False, "Resctrl": False}


@pytest.mark.parametrize(
    ("flags", "on"),
    [
        ((), ("CPUBurst",)),
        (("-feature-gates=AllAlpha=true,AllBeta=true",), tuple(sorted(DEFAULTS))),
        (("--feature-gates=AllAlpha=true,Resctrl=false",), ("CPUBurst", "CgroupReconcile")),
        (("--feature-gates", "AllBeta=false"), ()),
        (("--feature-gates=CPUBurst=F", "--runtime-hooks=Resctrl=1"), ("Resctrl",)),
    ],
)
def test_gates_by_the_flags_of_koordlet(flags: tuple[str, ...], on: tuple[str, ...]) -> None:
    assert gates(("/koordlet", *flags), DEFAULTS) == on


def process(proc: Path, pid: int, argv: str, uids: str = "0 0 0 0", pids: str = "") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(argv.replace(" ", "\0").encode() + b"\0")
    (folder / "comm").write_text("koordlet\n")
    (folder / "status").write_text(f"PPid:\t1\nUid:\t{uids}\nNSpid:\t{pids or pid}\n")


def test_only_root_in_the_pid_namespace_of_the_host_is_koordlet(tmp_path: Path) -> None:
    """Any pod may have a program of this name: it must not stop the agent."""
    process(tmp_path, 10, "/koordlet", uids="1000 1000 1000 1000")
    process(tmp_path, 11, "/koordlet", pids="11 1")
    process(tmp_path, 12, "/bin/other koordlet")
    assert find(str(tmp_path)) is None
    process(tmp_path, 13, "/koordlet -v=4")
    assert find(str(tmp_path)) == KoordletProcess(13, ("/koordlet", "-v=4"))


def test_the_command_line_of_another_process_is_not_read(tmp_path: Path) -> None:
    """A process can make whoever reads it wait, without end."""
    for pid, uids, pids in ((10, "1000 1000 1000 1000", "10"), (11, "0 0 0 0", "11 1")):
        process(tmp_path, pid, "/koordlet", uids, pids)
        (tmp_path / str(pid) / "cmdline").unlink()
        os.mkfifo(tmp_path / str(pid) / "cmdline")
    assert find(str(tmp_path)) is None


def test_no_procfs_shows_no_koordlet(tmp_path: Path) -> None:
    assert find(str(tmp_path / "absent")) is None
