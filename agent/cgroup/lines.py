"""Values in files with a line for each disk, under names of their own: `FILE DISK` is what a file
has for a disk, `FILE DISK FIELD` one field of that (`io.max 8:0 rbps`). The agent
writes, journals and gives back one value, and leaves those of other programs in the same file. A
disk is MAJOR:MINOR."""

from __future__ import annotations


def file_of(name: str) -> str:
    """The file that has the value; other names are those of files."""
    return name.partition(" ")[0]


def value(text: str, name: str) -> str:
    """What the file with this text has under the name: all of it for the name of a file, "" for a
    disk without a line, or a line without the field."""
    _, _, line = name.partition(" ")
    if not line:
        return text
    disk, _, field = line.partition(" ")
    for present in text.splitlines():
        words = present.split()
        if words[:1] == [disk]:
            if not field:
                return " ".join(words[1:])
            values = (word.partition("=") for word in words[1:])
            return next((after for before, _, after in values if before == field), "")
    return ""


def written(name: str, text: str) -> str:
    """What is written to the file to set the value."""
    _, _, line = name.partition(" ")
    disk, _, field = line.partition(" ")
    return " ".join(filter(None, (disk, f"{field}={text}" if field else text)))
