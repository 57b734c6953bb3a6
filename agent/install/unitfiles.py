"""The files of a systemd unit, its fragment and its drop-ins, and the values in them
(systemd.unit(5))."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from agent.install.tree import HostTree, TextFile

FOLDERS: Final = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)
"""A file in an earlier folder overrides a file of the same name in a later one."""

_CONTINUED: Final = re.compile(r"\\\n(?:[ \t]*[#;][^\n]*\n)*")


class Unit(msgspec.Struct, frozen=True):
    """A unit of systemd."""

    name: str
    files: tuple[TextFile, ...] = ()
    """In the order in which systemd reads them, none if the unit does not exist."""

    def values(self, key: str) -> list[str]:
        """The values of a key in [Service] that may occur several times. An empty value removes the
        values before it."""
        found: list[str] = []
        for file in self.files:
            for each, value in _assignments(file.text):
                if each == key:
                    found = [*found, value] if value else []
        return found

    @property
    def environment(self) -> dict[str, str]:
        pairs = (word.partition("=") for line in self.values("Environment") for word in words(line))
        return {name: value for name, equals, value in pairs if equals}

    def with_drop_in(self, file: TextFile) -> Unit:
        """The unit with this drop-in, which replaces one at the same path."""
        fragment, *others = self.files
        drop_ins = [each for each in others if each.path != file.path]
        ordered = sorted([*drop_ins, file], key=lambda each: each.path.rpartition("/")[2])
        return Unit(self.name, (fragment, *ordered))


def words(line: str) -> list[str]:
    """The words of a value, without quotes; none if the value can't be split."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


def quoted(word: str) -> str:
    """A word, quoted for a value of a unit."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def read(tree: HostTree, name: str) -> Unit:
    """The unit of this name. Raises OSError, TreeError."""
    fragment = next((file for each in FOLDERS if (file := tree.file(f"{each}/{name}"))), None)
    drop_ins: dict[str, TextFile] = {}
    for folder in reversed(FOLDERS):
        for entry in _drop_ins(tree, f"{folder}/{name}.d"):
            if file := tree.file(f"{folder}/{name}.d/{entry}"):
                drop_ins[entry] = file
    files = [fragment] if fragment else []
    return Unit(name, (*files, *(drop_ins[entry] for entry in sorted(drop_ins))))


def _drop_ins(tree: HostTree, folder: str) -> Sequence[str]:
    return [each for each in tree.names(folder) if each.endswith(".conf")]


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in _CONTINUED.sub(" ", text).split("\n"):
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line
        elif section == "[Service]" and line[:1] not in ("", "#", ";"):
            key, equals, value = line.partition("=")
            if equals:
                yield key.strip(), value.strip()
