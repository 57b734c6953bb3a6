"""The commands of README.md that start with `make`, on new machines, from nothing: their times.

A machine is a root file system of Debian 12, Debian 13 or Ubuntu 24.04 that debootstrap has just
made, with the repository's files, and with mount and PID namespaces of its own; kernel, CPUs,
cgroups, network and certificates are those of this machine. `NAME_packages` is the time to install
what README requires, make and python3. `NAME_make_run` and `NAME_make_test` are the times of the
commands, with all that they install; a command that fails is skipped, and the end of its output is
printed. Making the file system is not included. The other commands of README.md need Docker and a
cluster.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from benchmarks.common import Row, arguments, report, value_row

ROOT: Final = Path(__file__).resolve().parents[1]
CERTIFICATES: Final = Path("etc/ssl/certs/ca-certificates.crt")
RESOLVER: Final = Path("etc/resolv.conf")
FOLDER: Final = "/root/topolet"
INSTALL: Final = (
    "apt-get update -qq && DEBIAN_FRONTEND=noninteractive "
    "apt-get install -y -qq --no-install-recommends make python3"
)
SHOWN_LINES: Final = 40
"""Of the output of a command that fails."""

_ENTER: Final = """root=$1; shift
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
exec chroot . "$@"
"""
_INHERITED: Final = re.compile(r"PIP_(?!FIND_LINKS)\w+|(https?|no)_proxy", re.IGNORECASE)
"""The variables that say how this machine reaches archives and package indexes."""


class Distribution(msgspec.Struct, frozen=True):
    """`words`: the options of debootstrap.
    `script`: that of debootstrap, where it is not named as the suite.
    `keyring`: the package of Debian 13 with the keys of the archive, where Debian 12 has none."""

    suite: str
    words: tuple[str, ...] = ()
    script: str = ""
    keyring: str = ""


DISTRIBUTIONS: Final = {
    "debian12": Distribution("bookworm"),
    "debian13": Distribution("trixie"),
    "ubuntu2404": Distribution("noble", ("--components=main,universe",), "gutsy", "ubuntu-keyring"),
}


class MissingMachineError(Exception):
    """A file system can't be made here. The message says why."""


class NewMachine:
    """A root file system in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, command: str, folder: str = "/") -> subprocess.CompletedProcess[str]:
        """Runs a command of the shell as root; ends all processes that it leaves. The output
        includes the errors."""
        words = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", _ENTER, "sh")
        variables = {
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "TERM": "dumb",
            **{name: text for name, text in os.environ.items() if _INHERITED.fullmatch(name)},
        }
        shell = f"cd {shlex.quote(folder)} && {command}"
        return subprocess.run(
            [*words, str(self.root), "/bin/sh", "-c", shell],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )


def bootstrapped(distribution: Distribution, folder: Path) -> NewMachine:
    """Raises MissingMachineError."""
    words = list(distribution.words)
    if distribution.keyring:
        words.append(f"--keyring={_keyring(distribution, folder)}")
    root = folder / distribution.suite
    positional = [distribution.suite, str(root)]
    if distribution.script:
        positional += ["", distribution.script]
    done = subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=ca-certificates", *words, *positional],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise MissingMachineError(f"debootstrap can't make {distribution.suite}: {''.join(last)}")
    for path in (CERTIFICATES, RESOLVER):
        shutil.copyfile("/" / path, root / path)
    return NewMachine(root)


def _keyring(distribution: Distribution, folder: Path) -> Path:
    """The keys of an archive, from the package of Debian 13, whose archive this machine trusts."""
    installed = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
    if installed.exists():
        return installed
    source = bootstrapped(Distribution("trixie"), folder / "keyring")
    package = distribution.keyring
    done = source.run(f"apt-get update -qq && apt-get download -qq {package}", "/tmp")
    packages = list((source.root / "tmp").glob(f"{package}_*.deb"))
    if done.returncode or not packages:
        raise MissingMachineError(f"apt-get can't fetch {package}")
    subprocess.run(["dpkg-deb", "-x", packages[0], source.root], check=True)
    return source.root / installed.relative_to("/")


def commands() -> list[str]:
    """Those of README.md that a new machine can run."""
    return re.findall(r"^make .*$", (ROOT / "README.md").read_text(), re.MULTILINE)


def case_of(command: str) -> str:
    """`make_run` of `make run SECONDS=20`."""
    return "_".join(word for word in command.split() if "=" not in word)


def measured(name: str, all_commands: list[str], folder: Path) -> Iterator[Row]:
    """Raises MissingMachineError."""
    machine = bootstrapped(DISTRIBUTIONS[name], folder)
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    inside = machine.root / FOLDER.lstrip("/")
    inside.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", inside], input=archive, check=True)
    yield timed(machine, f"{name}_packages", INSTALL)
    for command in all_commands:
        yield timed(machine, f"{name}_{case_of(command)}", command, FOLDER)


def timed(machine: NewMachine, case: str, command: str, folder: str = "/") -> Row:
    began = time.monotonic()
    done = machine.run(command, folder)
    seconds = time.monotonic() - began
    if not done.returncode:
        return value_row(case, seconds, "s")
    lines = done.stdout.splitlines()[-SHOWN_LINES:]
    print(f"{case}: {command}", *lines, sep="\n", file=sys.stderr)
    reason = f"{command} ended with {done.returncode} after {seconds:.0f} s"
    return {"case": case, "unit": "s", "skipped": reason}


def unusable(*, quick: bool) -> str | None:
    """The reason why no machine can be made here, or None."""
    if quick:
        return "a new machine takes minutes"
    if os.geteuid():
        return "it needs root"
    missing = [each for each in ("debootstrap", "unshare", "chroot") if not shutil.which(each)]
    return f"{missing[0]} is not installed" if missing else None


def rows(names: list[str], all_commands: list[str], reason: str | None) -> Iterator[Row]:
    """`reason`: why nothing can be measured, or None."""
    for name in names:
        skipped = reason
        if not skipped:
            with tempfile.TemporaryDirectory(prefix="topolet-") as folder:
                try:
                    yield from measured(name, all_commands, Path(folder))
                except MissingMachineError as error:
                    skipped = str(error)
        if skipped:
            yield {"case": f"{name}_packages", "unit": "s", "skipped": skipped}


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--only", action="append", choices=DISTRIBUTIONS, help="only this one")
        text = "only this command, for example `make run SECONDS=20`"
        parser.add_argument("--command", action="append", help=text)

    options = arguments(__doc__, more)
    names = list(options.only or DISTRIBUTIONS)
    reason = unusable(quick=options.quick)
    report(list(rows(names, options.command or commands(), reason)), options.output)


if __name__ == "__main__":
    main()
