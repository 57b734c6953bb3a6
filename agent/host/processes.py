"""Processes as the kernel shows them: `/proc/PID` (proc(5)). A process chooses its own name,
command line and groups, so each read is bounded."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Final

import msgspec

_ALLOWED = "Cpus_allowed_list:"
_ARGV0_BYTES: Final = 4096
"""The longest path (PATH_MAX)."""
_MAX_ARGV_BYTES: Final = 256 << 10
"""The part of a command line that is read; the kernel allows megabytes."""
_MAX_STATUS_BYTES: Final = 1 << 20
"""The line of groups holds up to 65,536 numbers (NGROUPS_MAX)."""
_MAX_CGROUP_BYTES: Final = 128 << 10
"""One line for each hierarchy, with a path."""
_MAX_NAME_BYTES: Final = 64


class ProcessGoneError(Exception):
    """The process has ended."""


class UnreadableError(Exception):
    """A file of the process can't be read; the message names the file and the reason."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """Fields of `/proc/PID/status`."""

    parent: int
    uids: tuple[int, ...]
    """Real, effective, saved and file system."""
    pids: tuple[int, ...]
    """The process's number in each PID namespace, from that of the procfs inwards; empty before
    Linux 4.1 (no NSpid)."""


class Process:
    """One process. Its folder of the procfs stays open, so that no later process with the same
    number is read. The methods raise ProcessGoneError and UnreadableError."""

    def __init__(self, proc: str, pid: int) -> None:
        """Raises ProcessGoneError, UnreadableError."""
        self.pid = pid
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with self._errors_of("its folder"):
            self._folder = os.open(f"{proc}/{pid}", flags)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)

    def argv0(self) -> str:
        """The first argument of the command line, cut at _ARGV0_BYTES."""
        return os.fsdecode(self._read("cmdline", _ARGV0_BYTES).partition(b"\0")[0])

    def argv(self) -> list[str]:
        """The arguments of the command line, also empty ones."""
        text = self._read("cmdline", _MAX_ARGV_BYTES + 1)
        if len(text) > _MAX_ARGV_BYTES:
            raise UnreadableError(
                f"process {self.pid}: its command line is longer than {_MAX_ARGV_BYTES} bytes"
            )
        return os.fsdecode(text.removesuffix(b"\0")).split("\0")

    def name(self) -> str:
        """The name of the executed file, unless the process set another: 15 bytes at most."""
        return os.fsdecode(self._read("comm", _MAX_NAME_BYTES).removesuffix(b"\n"))

    def groups(self) -> dict[str, str]:
        """The cgroups by the controllers of their hierarchy, "" for v2. Their paths are relative to
        the reader's cgroup namespace (cgroup_namespaces(7))."""
        found = {}
        # The name of a group may hold any byte but a line end and NUL.
        for line in self._read("cgroup", _MAX_CGROUP_BYTES).split(b"\n"):
            _, _, rest = line.partition(b":")
            controllers, colon, group = rest.partition(b":")
            if colon:
                found[os.fsdecode(controllers)] = os.fsdecode(group)
        return found

    def status(self) -> ProcessStatus:
        text = self._read("status", _MAX_STATUS_BYTES).decode("ascii", "replace")
        fields = dict(line.split(":", 1) for line in text.split("\n") if ":" in line)
        try:
            return ProcessStatus(
                int(fields["PPid"]),
                tuple(map(int, fields["Uid"].split())),
                tuple(map(int, fields.get("NSpid", "").split())),
            )
        except (KeyError, ValueError) as error:
            raise UnreadableError(f"process {self.pid}: its status: {error!r}") from None

    def namespace(self, kind: str) -> str:
        """The identity of its namespace of a kind, such as `net` (namespaces(7))."""
        with self._errors_of(f"ns/{kind}"):
            return os.readlink(f"ns/{kind}", dir_fd=self._folder)

    def open_namespace(self, kind: str) -> int:
        """A descriptor of its namespace of a kind, which the caller closes."""
        with self._errors_of(f"ns/{kind}"):
            return os.open(f"ns/{kind}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder)

    def _read(self, name: str, most_bytes: int) -> bytes:
        with (
            self._errors_of(name),
            open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._folder), "rb") as file,
        ):
            return file.read(most_bytes)

    @contextlib.contextmanager
    def _errors_of(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessGoneError(f"process {self.pid} has ended") from None
        except OSError as error:
            raise UnreadableError(f"process {self.pid}: {what}: {error.strerror}") from None


def pids(proc: str) -> list[int]:
    """The processes of a procfs, by number. Raises OSError without a procfs."""
    return sorted(int(entry) for entry in os.listdir(proc) if entry.isdecimal())


def allowed_cpus(proc: str, pid: int) -> str | None:
    """The CPUs that a process may run on, as a Linux list: its own affinity within its cpuset. None
    for a process that has ended."""
    try:
        with open(f"{proc}/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(_ALLOWED):
                    return line.removeprefix(_ALLOWED).strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None


_FLOCK_LINE: Final = re.compile(
    r"^\d+: FLOCK +ADVISORY +(?:READ|WRITE) (\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE
)
"""A line of /proc/locks (proc_locks(5)): pid, major and minor number of the device, inode."""


def lock_holders(path: str, proc: str = "/proc") -> frozenset[int]:
    """The processes that hold a lock of `locks` on the file, by their numbers in the procfs; none
    without the file, and none that this process may not see."""
    try:
        found = os.stat(path)
        with open(f"{proc}/locks", encoding="ascii", errors="replace") as file:
            text = file.read()
    except OSError:
        return frozenset()
    wanted = (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
    return frozenset(
        int(pid)
        for pid, major, minor, inode in _FLOCK_LINE.findall(text)
        if (int(major, 16), int(minor, 16), int(inode)) == wanted
    )
