"""The original values of cgroup files, on disk before the agent's first write to each.

One JSON object a line, so that the intact lines of a damaged file can be read. The first one also
has the id of the boot: where the file outlives that, its entries count for nothing, because every
group, interrupt and queue has ended, and others have their names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from agent.cgroup.hierarchy import CgroupError, below
from agent.host import files
from agent.model.cpu.cpuset import CpuSet, CpuSetError

_FILE: Final = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*( [0-9]+:[0-9]+( [a-z]+)?)?")
"""With the names of `lines`."""
_BOOT: Final = "boot"


class Original(msgspec.Struct, frozen=True, omit_defaults=True):
    """The original cpuset of a group."""

    group: str
    cpus: str
    """The own value as a list; empty where a v2 group inherited."""
    note: str | None = None
    """Why the value was replaced, for an agent that starts later; None for most."""


class OriginalValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a file other than `cpuset.cpus`, without the line end, or a value in a file
    (`lines`)."""

    group: str
    file: str
    value: str
    written: tuple[str, ...] = ()
    """The agent's own contents that the file may have: any other is that of another program. Empty
    where the kernel changes the file, too."""


class JournalError(Exception):
    """The journal can't be written; the message names the file and the reason."""


class Journal:
    """The original values: cpusets by group, other files by group and file name. For one thread and
    process at a time. Reading never fails: an invalid file is kept as `NAME.broken`, and its valid
    lines are used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: tuple[str, ...] = ()
        """What could not be read."""
        self._originals: dict[str, Original] = {}
        self._values: dict[tuple[str, str], OriginalValue] = {}
        self._load()

    @property
    def originals(self) -> Mapping[str, Original]:
        """The cpusets, sorted by group."""
        return dict(sorted(self._originals.items()))

    @property
    def values(self) -> Mapping[tuple[str, str], OriginalValue]:
        """The other files, sorted by group and name."""
        return dict(sorted(self._values.items()))

    @property
    def files(self) -> Collection[tuple[str, str]]:
        """The groups and names of the other files, in no order."""
        return self._values.keys()

    def value(self, group: str, file: str) -> OriginalValue | None:
        """The entry of a file other than `cpuset.cpus`; None without one."""
        return self._values.get((group, file))

    def __contains__(self, key: str | tuple[str, str]) -> bool:
        """Whether the group's cpuset, or the file of a group, has an entry."""
        return (key in self._originals) if isinstance(key, str) else (key in self._values)

    def update(self, add: Iterable[Original], remove: Iterable[str] = ()) -> None:
        """Removes entries by group, then adds others, durably. An entry that exists is not
        replaced. Writes nothing without a change. Raises JournalError, and then keeps its last
        content."""
        after = dict(self._originals)
        for group in remove:
            after.pop(group, None)
        for each in add:
            after.setdefault(each.group, each)
        if after != self._originals:
            self._save(after, self._values)
            self._originals = after

    def remove(self, groups: Iterable[str]) -> None:
        """Removes entries: their groups have their values back, or do not exist any more."""
        self.update((), groups)

    def update_values(
        self, add: Iterable[OriginalValue], remove: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Removes and adds entries for other files than `cpuset.cpus`, by group and name, in the
        way of `update`."""
        after = dict(self._values)
        for key in remove:
            after.pop(key, None)
        for value in add:
            after.setdefault((value.group, value.file), value)
        if after != self._values:
            self._save(self._originals, after)
            self._values = after

    def _save(
        self,
        originals: Mapping[str, Original],
        values: Mapping[tuple[str, str], OriginalValue],
    ) -> None:
        # Not msgspec: a group's name may have bytes that are not UTF-8, which must be kept.
        entries = [msgspec.to_builtins(each) for each in (*_sorted(originals), *_sorted(values))]
        for entry in entries[:1]:
            entry[_BOOT] = files.boot_id()
        lines = [json.dumps(entry) + "\n" for entry in entries]
        try:
            files.make_folders(str(self.path.parent))
            files.replace(str(self.path), "".join(lines).encode("ascii"), durable=True, mode=0o600)
        except OSError as error:
            raise JournalError(f"cannot write {str(self.path)!r}: {error.strerror}") from error

    def _load(self) -> None:
        broken = self.path.with_name(f"{self.path.name}.broken")
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            self._problem(f"cannot be read ({error.strerror})")
            try:
                os.replace(self.path, broken)
            except OSError as second:
                self._problem(f"cannot be renamed ({second.strerror})")
            return
        if _is_of_another_boot(data):
            return
        bad = 0
        for number, line in enumerate(data.split(b"\n"), 1):
            if not line:
                continue
            try:
                entry = _parse(line)
            except (ValueError, RecursionError) as error:
                bad += 1
                if bad == 1:
                    self._problem(f"line {number}: {error}")
                continue
            if isinstance(entry, Original):
                self._originals.setdefault(entry.group, entry)
            else:
                self._values.setdefault((entry.group, entry.file), entry)
        if not bad:
            return
        kept = len({*self._originals, *(group for group, _ in self._values)})
        self._problem(f"renamed to {broken.name!r}: {bad} lines unreadable, {kept} groups kept")
        try:
            files.replace(str(broken), data, durable=True, mode=0o600)
            self._save(self._originals, self._values)
        except (OSError, JournalError) as error:
            self._problem(f"cannot be renamed ({error})")

    def _problem(self, text: str) -> None:
        self.problems = (*self.problems, f"journal {str(self.path)!r}: {text}")


def peek(
    path: Path,
) -> tuple[Mapping[str, Original], Mapping[tuple[str, str], OriginalValue]]:
    """The valid entries of a journal that another process may have: cpusets, then other files; none
    without a journal. Raises OSError."""
    originals: dict[str, Original] = {}
    values: dict[tuple[str, str], OriginalValue] = {}
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return originals, values
    for line in () if _is_of_another_boot(data) else data.split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            entry = _parse(line)
            if isinstance(entry, Original):
                originals.setdefault(entry.group, entry)
            else:
                values.setdefault((entry.group, entry.file), entry)
    return originals, values


_Key = TypeVar("_Key", str, tuple[str, str])
_Entry = TypeVar("_Entry", Original, OriginalValue)


def _sorted(entries: Mapping[_Key, _Entry]) -> list[_Entry]:
    return [each for _, each in sorted(entries.items())]


def _is_of_another_boot(data: bytes) -> bool:
    """A file without a boot, as of an older agent, is not."""
    try:
        content = json.loads(data.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    boot = content.get(_BOOT) if isinstance(content, dict) else None
    return boot is not None and boot != files.boot_id()


def _parse(line: bytes) -> Original | OriginalValue:
    """The entry in a line.

    Raises ValueError (msgspec's, json's and CpuSet's errors all are) or RecursionError."""
    content = json.loads(line)
    other = isinstance(content, dict) and "file" in content
    kind: type[Original] | type[OriginalValue] = OriginalValue if other else Original
    entry: Original | OriginalValue = msgspec.convert(content, kind)
    try:
        below(entry.group)
    except CgroupError as error:
        raise ValueError(str(error)) from None
    if isinstance(entry, OriginalValue) and not _FILE.fullmatch(entry.file):
        raise ValueError(f"{entry.file!r} is not a file of a cgroup")
    if isinstance(entry, Original):
        try:
            CpuSet.parse(entry.cpus)
        except CpuSetError as error:
            raise ValueError(f"{entry.group!r}: {error}") from error
    return entry
