"""One sysfs file as one value.

An absent or blank file gives None, because kernels and architectures differ in their files. An
invalid text raises DiscoveryError, or gives None for a value that the caller declares optional.
SysfsReader is for many devices. One broken device must not hide the others, so an unreadable or
invalid file gives None and is reported as a problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from agent.host.files import Tree
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.devices.pci import CharDevice

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


class DiscoveryError(Exception):
    """The machine's files are invalid; the message names the file, and the text found in it."""


def cpu_list(tree: Tree, path: str) -> CpuSet | None:
    """A set in list format (`0-3,8`)."""
    return _parsed(tree, path, CpuSet.parse)


def cpu_map(tree: Tree, mask_path: str) -> CpuSet | None:
    """A set in mask format (`ff,ffffffff`), which every kernel has."""
    return _parsed(tree, mask_path, CpuSet.parse_mask)


def integer(tree: Tree, path: str) -> int | None:
    """A decimal number."""
    text = tree.text(path)
    if text is None:
        return None
    if not _INTEGER.fullmatch(text):
        raise invalid_text(tree, path, text, "is not a number")
    return int(text)


def optional(read: Callable[[Tree, str], CpuSet | None], tree: Tree, path: str) -> CpuSet | None:
    """The result of `read`; None for an invalid file too."""
    try:
        return read(tree, path)
    except DiscoveryError:
        return None


def optional_integer(tree: Tree, path: str) -> int | None:
    """A decimal number, None where the text is something else."""
    return number(tree.text(path))


def number(text: str | None) -> int | None:
    """A decimal number, None for another text, or for more digits than any of the kernel's."""
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def numbered(tree: Tree, path: str, prefix: str) -> CpuSet:
    """The numbers N of a directory's entries `prefixN`."""
    start = len(prefix)
    return CpuSet(
        int(name[start:])
        for name in tree.names(path)
        if name.startswith(prefix) and name[start:].isdecimal() and len(name) < start + 6
    )


def partition(
    cpus: CpuSet, sharers: Callable[[int], CpuSet | None]
) -> Iterator[tuple[int, CpuSet]]:
    """Splits `cpus` into groups: yields the lowest CPU of each, and the group. A CPU stays in the
    first group that has it, so the groups are disjoint even if the files contradict each other.

    `sharers`: the CPUs that share with a CPU, by its file, None for no other CPU. It is called once
        for each group, for its lowest CPU."""
    rest = cpus.mask
    while rest:
        low = rest & -rest
        cpu = low.bit_length() - 1
        shared = sharers(cpu)
        members = low if shared is None else shared.mask & rest | low
        rest &= ~members
        yield cpu, CpuSet.from_int(members)


def invalid_text(tree: Tree, path: str, text: str, problem: str) -> DiscoveryError:
    """The error for a file whose text is invalid."""
    quoted = repr(text if len(text) <= 80 else text[:77] + "...")
    return DiscoveryError(f"{tree.path(path)}: {quoted} {problem}")


def _parsed(tree: Tree, path: str, parse: Callable[[str], CpuSet]) -> CpuSet | None:
    text = tree.text(path)
    if text is None:
        return None
    try:
        return parse(text)
    except CpuSetError as error:
        raise DiscoveryError(f"{tree.path(path)}: {error}") from error


Value = TypeVar("Value")

_HEXADECIMAL: Final = re.compile(r"(0x)?[0-9a-fA-F]{1,16}")
_NUMBER: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


class SysfsReader:
    """Reads files of devices. A file that can't be read, or is invalid, gives None."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.problems: list[str] = []
        """A sentence for each of these files."""

    def text(self, path: str) -> str | None:
        return self._checked(lambda: self.tree.text(path), path)

    def integer(self, path: str) -> int | None:
        return self._checked(lambda: integer(self.tree, path), path)

    def hexadecimal(self, path: str) -> int | None:
        text = self.text(path)
        if text is None:
            return None
        if not _HEXADECIMAL.fullmatch(text):
            self.problems.append(f"{self.tree.path(path)}: {text[:80]!r}: not a hexadecimal number")
            return None
        return int(text, 16)

    def cpus(self, list_path: str, mask_path: str) -> CpuSet | None:
        """The list, otherwise the mask; an empty set is ignored."""
        listed = self._checked(lambda: cpu_list(self.tree, list_path), list_path)
        return listed or self.mask(mask_path)

    def mask(self, path: str) -> CpuSet | None:
        """An empty set is ignored."""
        return self._checked(lambda: cpu_map(self.tree, path), path) or None

    def names(self, path: str) -> list[str]:
        """Sorted, so that the result does not depend on the directory's order."""
        return sorted(self._checked(lambda: self.tree.names(path), path) or ())

    def link(self, path: str) -> str:
        """The target of a link, "" where there is none."""
        return self._checked(lambda: self.tree.link(path), path) or ""

    def char_device(self, path: str, file: str) -> CharDevice:
        """The device whose folder is `path`, and whose node in /dev is `file`."""
        text = self.text(f"{path}/dev")
        match = _NUMBER.fullmatch(text) if text else None
        if text and not match:
            self.problems.append(f"{self.tree.path(path)}/dev: {text[:80]!r}: not a device number")
        return CharDevice(file, (int(match[1]), int(match[2])) if match else None)

    def _checked(self, read: Callable[[], Value | None], path: str) -> Value | None:
        try:
            return read()
        except DiscoveryError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{self.tree.path(path)}: {error.strerror}")
        return None
