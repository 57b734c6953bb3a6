"""The audit trail: what every process of Topolet changed or decided on a node, in files of JSON
lines below the state folder.

Each process appends to files of its own, `PROCESS.BEGIN.jsonl`; BEGIN is a time in seconds. When a
file is full, the process begins another one and removes the oldest ones; no file is renamed. So a
process may be killed at any moment, and two processes of one kind may append to one file, as two
proxies do while one drains. All records of one call are one write. If a write is cut short, only
its last line is lost: the next writer ends that line. Files are not flushed to the disk: records
survive the end of the process, but not a crash of the kernel.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from agent.host.log_once import Problem
from agent.model import audit
from agent.model.audit import AuditEvent, Record

log = logging.getLogger(__name__)

MAX_BYTES: Final = 4 << 20
"""The room for the files of one process: the state folder is in memory."""
FILES: Final = 4
"""The number of full files of a process that fit into its room."""
LONGEST_SECONDS: Final = 86_400.0
"""After this time a process begins another file, even if the last one is not full."""
KEPT_SECONDS: Final = 7 * 86_400.0
"""How long after its last record a file is kept."""
_SUFFIX: Final = ".jsonl"


class _File(msgspec.Struct, frozen=True, order=True):
    """A file of the trail."""

    begin: int
    """Seconds since 1970."""
    process: str
    path: str


class Trail:
    """Appends records of one process, from any thread. Never raises: a trail that can't be written
    is logged once, and the number of lost records is recorded later.

    `process`: its name, without dots.
    `most_bytes`: the room for its files."""

    def __init__(
        self,
        state_dir: str,
        process: str,
        most_bytes: int = MAX_BYTES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder = os.path.join(state_dir, audit.FOLDER)
        self._process = process
        self._most_bytes = most_bytes
        self._file_bytes = most_bytes // FILES
        self._now = now
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._begin = 0
        self._lost = 0
        self._problem = Problem(log, "the audit trail can't be written: ")

    def append(self, records: Sequence[Record]) -> None:
        """Writes the records, with the present time, in one write."""
        if not records:
            return
        now = self._now()
        with self._lock:
            if self._lost:
                lost = Record(event=AuditEvent.RECORDS_LOST, after=str(self._lost))
                records = (lost, *records)
            text = b"".join(self._encoded(each, audit.stamp(now)) for each in records)
            try:
                self._write(text, now)
            except OSError as error:
                self._lost += len(records) - bool(self._lost)
                self._close()
                self._problem.report(f"{error.filename or self._folder}: {error.strerror}")
                return
            self._lost = 0
            if self._problem.clear():
                log.info("the audit trail can be written again")

    def close(self) -> None:
        """Closes the file; a later record opens it again."""
        with self._lock:
            self._close()

    def _encoded(self, record: Record, moment: str) -> bytes:
        return audit.encode(
            msgspec.structs.replace(
                record, version=audit.VERSION, time=moment, process=self._process
            )
        )

    def _write(self, text: bytes, now: float) -> None:
        """Raises OSError."""
        if self._descriptor is None:
            self._open(now)
        assert self._descriptor is not None
        found = os.fstat(self._descriptor)
        full = found.st_size and found.st_size + len(text) > self._file_bytes
        if full or not found.st_nlink or now - self._begin > LONGEST_SECONDS:
            self._close()
            self._open(now, anew=True)
            found = os.fstat(self._descriptor)
        if found.st_size and os.pread(self._descriptor, 1, found.st_size - 1) != b"\n":
            text = b"\n" + text
        if os.write(self._descriptor, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._folder)

    def _open(self, now: float, *, anew: bool = False) -> None:
        """Opens the newest file, or the next one, and removes the oldest ones.

        Raises OSError."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        present = [file for file in _files(self._folder) if file.process == self._process]
        if present and not anew:
            path, begin = present[-1].path, present[-1].begin
        else:
            begin = max(int(now), present[-1].begin + 1 if present else 0)
            path = os.path.join(self._folder, f"{self._process}.{begin}{_SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        self._begin = begin
        self._remove_old([file for file in present if file.path != path], now)

    def _remove_old(self, others: Sequence[_File], now: float) -> None:
        room = self._most_bytes - self._file_bytes
        for each in reversed(others):
            try:
                found = os.stat(each.path)
                room -= found.st_size
                if room < 0 or now - found.st_mtime > KEPT_SECONDS:
                    os.unlink(each.path)
            except FileNotFoundError:
                continue  # another process of this kind removed it

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class FoundRecords(msgspec.Struct, frozen=True):
    """The records of a trail."""

    records: list[Record]
    """By time."""
    unreadable: int
    """How many lines are not records."""


def read(
    state_dir: str, since: str = "", chosen: Callable[[Record], bool] = lambda record: True
) -> FoundRecords:
    """The chosen records of all processes from that time on (see `audit.stamp`). Raises OSError,
    FileNotFoundError if the folder does not exist."""
    records, unreadable = [], 0
    for line in lines(state_dir, since):
        record = audit.decode(line)
        if record is None:
            unreadable += 1
        elif record.time >= since and chosen(record):
            records.append(record)
    records.sort(key=lambda each: each.time)
    return FoundRecords(records, unreadable)


def lines(state_dir: str, since: str = "") -> Iterator[bytes]:
    """The lines of the files that were written after that time, one file after the other. Raises
    as `read`."""
    folder = os.path.join(state_dir, audit.FOLDER)
    for each in _files(folder):
        try:
            file = open(each.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            continue  # removed meanwhile
        with file:
            if audit.stamp(os.fstat(file.fileno()).st_mtime) < since:
                continue
            for line in file:
                # The last line may be in the middle of its write.
                if line.endswith(b"\n") and line != b"\n":
                    yield line


def appended(state_dir: str, offsets: dict[str, int], most_bytes: int) -> Iterator[Record]:
    """The records that were appended since the last call with these `offsets`, which it updates:
    by file, how many bytes of it were read. Of a file that is not in `offsets`, at most the last
    `most_bytes`. Raises as `read`."""
    present = _files(os.path.join(state_dir, audit.FOLDER))
    for path in offsets.keys() - {each.path for each in present}:
        del offsets[path]
    for each in present:
        try:
            file = open(each.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            continue  # removed meanwhile
        with file:
            size = os.fstat(file.fileno()).st_size
            offset = offsets.get(each.path)
            if offset is None and size > most_bytes:
                file.seek(size - most_bytes)
                file.readline()
            else:
                file.seek(offset or 0)
            offsets[each.path] = file.tell()
            for line in file:
                if not line.endswith(b"\n"):
                    break  # in the middle of its write
                offsets[each.path] += len(line)
                if (record := audit.decode(line)) is not None:
                    yield record


def _files(folder: str) -> list[_File]:
    """The files with the oldest first.

    Raises OSError."""
    files = []
    for name in os.listdir(folder):
        process, _, begin = name.removesuffix(_SUFFIX).partition(".")
        if name.endswith(_SUFFIX) and begin.isdecimal() and begin.isascii():
            files.append(_File(int(begin), process, os.path.join(folder, name)))
    return sorted(files)
