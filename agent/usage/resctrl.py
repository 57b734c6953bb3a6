"""The cache and the memory bandwidth that groups of resctrl use
(Documentation/filesystems/resctrl.rst)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

import msgspec

from agent.host.files import Tree
from agent.host.log_once import Once

log = logging.getLogger(__name__)

_FOLDER: Final = "sys/fs/resctrl"
_DOMAIN: Final = "mon_L3_"
_MONITOR_GROUPS: Final = "mon_groups"
_OTHER_FOLDERS: Final = frozenset({"info", "mon_data", _MONITOR_GROUPS})
_MAX_DOMAINS: Final = 256
"""Of all groups together: the hardware asks a CPU of the domain for each value."""


class Monitored(msgspec.Struct, frozen=True):
    """What a group uses in one L3 domain; None for what the hardware does not count, or has no
    counter left for."""

    occupied_bytes: int | None
    """Of the cache."""
    total_bytes: int | None
    """That were moved between cache and memory, as a counter."""
    local_bytes: int | None
    """The part of it to memory of the same NUMA node."""


class Resctrl:
    """Reads the groups that exist, and makes none."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._absent = Once(log)

    def monitored(self) -> dict[tuple[str, str], Monitored]:
        """By group, as a path below the mount point, and L3 domain. The values of a control group
        contain those of its monitor groups."""
        if not self._tree.exists(f"{_FOLDER}/mon_data"):
            self._absent.report(f"nothing is monitored in /{_FOLDER} of this machine")
            return {}
        return {
            (group or "/", domain): Monitored(
                self._number(f"{folder}/llc_occupancy"),
                self._number(f"{folder}/mbm_total_bytes"),
                self._number(f"{folder}/mbm_local_bytes"),
            )
            for group, domain, folder in islice(self._domains(), _MAX_DOMAINS)
        }

    def _domains(self) -> Iterator[tuple[str, str, str]]:
        """Each group, its L3 domains and their folders. The root group is empty."""
        control_groups = ("", *self._children("", _OTHER_FOLDERS))
        monitor_groups = (
            group
            for above in control_groups
            for group in self._children(f"{above}/{_MONITOR_GROUPS}", frozenset())
        )
        for group in chain(control_groups, monitor_groups):
            folder = f"{_FOLDER}{group}/mon_data"
            for name in sorted(self._tree.names(folder)):
                number = name.removeprefix(_DOMAIN)
                if number != name and number.isdecimal():
                    yield group, str(int(number)), f"{folder}/{name}"

    def _children(self, group: str, others: frozenset[str]) -> Iterator[str]:
        for name in sorted(self._tree.names(f"{_FOLDER}{group}")):
            named = name not in others and name.isprintable()  # other names can't be reported
            if named and self._tree.exists(f"{_FOLDER}{group}/{name}/mon_data"):
                yield f"{group}/{name}"

    def _number(self, path: str) -> int | None:
        try:
            text = self._tree.text(path) or ""
        except OSError:  # the hardware has no value at the moment
            return None
        return int(text) if text.isdecimal() else None
