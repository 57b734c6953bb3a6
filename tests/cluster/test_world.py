"""Processes and mounts of a world stay inside and end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import world
from tests.cluster.machine import MachineError, ProgramError
from tests.fixtures.cgroups import MOUNTS
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(bool(world.lacking()), reason=f"lacks {world.lacking()}")

CGROUPS = "/sys/fs/cgroup/cpuset" if (MOUNTS / "cpuset").exists() else "/sys/fs/cgroup"

_HOLD = """
import sys
from tests.cluster import world
with world.created("") as place:
    print(place.folder, place.start("sleep", "sleep", "1000"), flush=True)
    sys.stdin.read()
"""


def groups(name: str) -> list[Path]:
    return [*MOUNTS.glob(name), *MOUNTS.glob(f"*/{name}")]


def processes_of(folder: Path) -> list[Path]:
    """Processes of the machine whose command line names the folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in each.read_bytes():
                found.append(each)
        except OSError:
            continue
    return found


def test_two_worlds_are_isolated_from_each_other_and_from_the_machine() -> None:
    with world.created("") as one, world.created("") as other:
        for place in (one, other):
            place.write("/var/lib/kubelet/mine", str(place.folder))
            place.write("/etc/kubernetes/mine", str(place.folder))
            place.write("/proc/sys/vm/panic_on_oom", "0")
            place.run("mkdir", f"{CGROUPS}/mine")
        for place in (one, other):
            assert place.read("/var/lib/kubelet/mine", "/etc/kubernetes/mine") == {
                "/var/lib/kubelet/mine": str(place.folder),
                "/etc/kubernetes/mine": str(place.folder),
            }
            assert "192.0.2.10/24" in place.run("ip", "address")
            assert groups(f"{place.folder.name}/mine")
        assert not Path("/var/lib/kubelet/mine").exists()
        assert not groups("mine")
        seen = Path("/proc/self/mounts").read_text()
        assert str(one.folder) not in seen
        folders = [one.folder, other.folder]
    for folder in folders:
        assert not folder.exists()
        assert not groups(folder.name)
        assert not processes_of(folder)


def test_world_of_a_killed_session_ends_and_the_next_one_removes_it() -> None:
    words = [sys.executable, "-c", _HOLD]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout is not None
        folder = Path(session.stdout.readline().split()[0])
        assert processes_of(folder)
        assert groups(folder.name)
        session.send_signal(signal.SIGKILL)
    eventually("its processes end", lambda: not processes_of(folder))
    with world.created(""):
        assert not folder.exists()
        assert not groups(folder.name)


def test_failures_are_reported() -> None:
    with world.created("") as place:
        with pytest.raises(ProgramError, match="exit code 3: so it ends"):
            place.run("sh", "-c", "echo so it ends >&2; exit 3")
        with pytest.raises(MachineError, match="FileNotFoundError"):
            place.run("/no/such/program")
        place.start("brief", "sh", "-c", "echo so it ends; exit 4")
        eventually("it ends", lambda: place.ended("brief") is not None)
        with pytest.raises(AssertionError, match="brief ended with 4:\nso it ends"):
            place.alive("brief")


def test_every_value_that_a_file_takes_is_observed() -> None:
    with world.created("") as place:
        place.write("/run/topolet/value", "1")
        with place.following(["/run/*/value", "/run/none"]) as seen:
            for text in ("1", "2", "1"):
                place.write("/run/topolet/new", text)
                place.run("sh", "-c", "mv /run/topolet/new /run/topolet/value; sleep 0.2")
        assert seen == {"/run/topolet/value": ["1", "2", "1"]}


def test_the_values_that_files_have_at_one_time_are_observed() -> None:
    with world.created("") as place:
        for name in ("a", "b"):
            place.write(f"/run/topolet/{name}", "1")
        with place.moments(["/run/topolet/?"]) as seen:
            for name in ("a", "b"):
                place.write("/run/topolet/new", "2")
                place.run("sh", "-c", f"mv /run/topolet/new /run/topolet/{name}; sleep 0.2")
        wanted = [("1", "1"), ("2", "1"), ("2", "2")]
        assert [(each["/run/topolet/a"], each["/run/topolet/b"]) for each in seen] == wanted
