"""benchmarks/newcomers.py: its commands are those of README.md, and run on a machine apart."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from benchmarks import newcomers
from benchmarks.newcomers import Distribution, MissingMachineError, NewMachine
from tests.fixtures import image

RUN = "make run SECONDS=20"


def test_the_commands_are_those_of_the_readme() -> None:
    assert {newcomers.case_of(command): command for command in newcomers.commands()} == {
        "make_run": RUN,
        "make_test": "make test",
    }


@pytest.fixture
def machine(tmp_path: Path) -> NewMachine:
    """A file system with busybox alone."""
    busybox = image.busybox()
    if os.geteuid() or busybox is None:
        pytest.skip("needs root and a static busybox")
    for folder in ("bin", "proc", "sys", "dev", "run", "work"):
        (tmp_path / folder).mkdir()
    shutil.copy(busybox, tmp_path / "bin" / "busybox")
    for applet in ("sh", "sleep", "mount"):
        (tmp_path / "bin" / applet).symlink_to("busybox")
    return NewMachine(tmp_path)


def test_a_command_has_its_own_files_and_processes(machine: NewMachine) -> None:
    done = machine.run(
        "sleep 86399 & mount -t tmpfs tmpfs /work && echo here >file; exit 3", "/work"
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert str(machine.root) not in Path("/proc/mounts").read_text()
    assert list((machine.root / "work").iterdir()) == []
    assert all(b"86399" not in _command_of(number) for number in os.listdir("/proc"))


def _command_of(number: str) -> bytes:
    try:
        return Path("/proc", number, "cmdline").read_bytes() if number.isdigit() else b""
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_command_that_fails_has_no_time(
    machine: NewMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    row = newcomers.timed(machine, "tiny_make_run", "echo broken; exit 2")
    assert row["skipped"].startswith("echo broken; exit 2 ended with 2 after ")
    assert capsys.readouterr().err.endswith("\nbroken\n")
    assert newcomers.timed(machine, "tiny_make_run", "true")["value"] >= 0


def test_a_distribution_that_does_not_exist_has_a_reason(tmp_path: Path) -> None:
    if reason := newcomers.unusable(quick=False):
        pytest.skip(reason)
    with pytest.raises(MissingMachineError, match="No such script"):
        newcomers.bootstrapped(Distribution("no-such-suite"), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_newcomer_on_debian_sees_the_demonstration() -> None:
    if reason := newcomers.unusable(quick=False):
        pytest.skip(reason)
    rows = list(newcomers.rows(["debian12"], [RUN], None))
    if "debootstrap can't make" in rows[0].get("skipped", ""):
        pytest.skip(rows[0]["skipped"])
    assert [row["case"] for row in rows] == ["debian12_packages", "debian12_make_run"]
    assert all(row.get("value", 0) > 0 for row in rows), rows
