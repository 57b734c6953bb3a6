"""Facts about many devices: one broken device must not hide the others. A fact whose file is absent
is None, and so is an unreadable or invalid one, which is also reported as a problem."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from agent.discover.facts import DiscoveryError, cpu_list, cpu_map, integer
from agent.host.files import Tree
from agent.model.cpuset import CpuSet
from agent.model.pci import CharDevice

Value = TypeVar("Value")

_HEXADECIMAL: Final = re.compile(r"(0x)?[0-9a-fA-F]{1,16}")
_NUMBER: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


class SysfsReader:
    """`problems` grow while it reads."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.problems: list[str] = []

    def text(self, path: str) -> str | None:
        return self._told(lambda: self.tree.text(path), path)

    def integer(self, path: str) -> int | None:
        return self._told(lambda: integer(self.tree, path), path)

    def hexadecimal(self, path: str) -> int | None:
        text = self.text(path)
        if text is None:
            return None
        if not _HEXADECIMAL.fullmatch(text):
            self.problems.append(f"{self.tree.path(path)}: {text[:80]!r} is no hexadecimal number")
            return None
        return int(text, 16)

    def cpus(self, list_path: str, mask_path: str) -> CpuSet | None:
        """The list, otherwise the mask; an empty set is ignored."""
        return (
            self._told(lambda: cpu_list(self.tree, list_path), list_path)
            or self._told(lambda: cpu_map(self.tree, mask_path), mask_path)
            or None
        )

    def names(self, path: str) -> list[str]:
        """Sorted, so that the order of a directory decides nothing."""
        return sorted(self._told(lambda: self.tree.names(path), path) or ())

    def link(self, path: str) -> str:
        """Where a link points to, "" where there is none."""
        return self._told(lambda: self.tree.link(path), path) or ""

    def char_device(self, path: str, file: str) -> CharDevice:
        """`path`: of the device's folder."""
        text = self.text(f"{path}/dev")
        match = _NUMBER.fullmatch(text) if text else None
        if text and not match:
            self.problems.append(f"{self.tree.path(path)}/dev: {text[:80]!r} is no device number")
        return CharDevice(file, (int(match[1]), int(match[2])) if match else None)

    def _told(self, read: Callable[[], Value | None], path: str) -> Value | None:
        try:
            return read()
        except DiscoveryError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{self.tree.path(path)}: {error.strerror}")
        return None
