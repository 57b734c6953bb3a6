"""Reads YAML files that other programs or people write."""

from __future__ import annotations

import os
import stat
from typing import Any, Final

MAX_BYTES: Final = 4 << 20


class DocumentError(ValueError):
    """A file that is not YAML, not a regular file, or too large; the message names the place."""


def text(path: str) -> bytes:
    """The content of a regular file of at most MAX_BYTES. A pipe or a device in its place is an
    error at once. Raises OSError and DocumentError."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DocumentError("is not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise DocumentError(f"is larger than {MAX_BYTES} bytes")
    return content


def read(path: str) -> Any:
    """Returns the plain values of a file with one document. Raises OSError and DocumentError."""
    import yaml  # takes a megabyte, which an agent without a kubelet saves

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content = text(path)
    try:
        return yaml.load(content, loader)
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        raise DocumentError(fault(error)) from error


def fault(error: Exception) -> str:
    """What is wrong, and where, by an error of a YAML reader. Quotes nothing of the file, which may
    have secrets: `password: *s3cr3t` is an alias that is not defined."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "is not YAML"
    problem: str = getattr(error, "problem", None) or "can't be read"
    unquoted = problem.partition("'")[0].rstrip(" ,:")
    return f"is not YAML: line {mark.line + 1}, column {mark.column + 1}: {unquoted}"
