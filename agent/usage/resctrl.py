"""The cache and the memory bandwidth that groups of resctrl use
(Documentation/filesystems/resctrl.rst)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from agent.host.files import Tree
from agent.host.log_once import Once

log = logging.getLogger(__name__)

_FOLDER: Final = "sys/fs/resctrl"
_DOMAIN: Final = "mon_L3_"
_MONITOR_GROUPS: Final = "mon_groups"
_OTHER_FOLDERS: Final = frozenset({"info", "mon_data", _MONITOR_GROUPS})
_MAX_GROUPS: Final = 256


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
        by_domain = {}
        for group in islice(self._groups(), _MAX_GROUPS):
            folder = f"{_FOLDER}{group}/mon_data"
            for name in sorted(self._tree.names(folder)):
                domain = name.removeprefix(_DOMAIN)
                if domain != name and domain.isdecimal():
                    by_domain[group or "/", str(int(domain))] = Monitored(
                        self._number(f"{folder}/{name}/llc_occupancy"),
                        self._number(f"{folder}/{name}/mbm_total_bytes"),
                        self._number(f"{folder}/{name}/mbm_local_bytes"),
                    )
        return by_domain

    def _groups(self) -> Iterator[str]:
        """The root group is empty."""
        for group in ("", *self._children("", _OTHER_FOLDERS)):
            yield group
            yield from self._children(f"{group}/{_MONITOR_GROUPS}", frozenset())

    def _children(self, group: str, others: frozenset[str]) -> Iterator[str]:
        for name in sorted(self._tree.names(f"{_FOLDER}{group}")):
            if name not in others and self._tree.exists(f"{_FOLDER}{group}/{name}/mon_data"):
                yield f"{group}/{name}"

    def _number(self, path: str) -> int | None:
        try:
            text = self._tree.text(path) or ""
        except OSError:  # the hardware has no value at the moment
            return None
        return int(text) if text.isdecimal() else None
