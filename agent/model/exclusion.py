"""Patterns of containers, pods and namespaces that Topolet does not manage."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

Patterns = tuple[str, ...]

_PARTS: Final = 3


class ExclusionError(ValueError):
    """A pattern that names nothing; the message quotes it."""


def parse(text: str) -> Patterns:
    """Comma-separated `NAMESPACE`, `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`, each part with `*`
    and `?`. Raises ExclusionError."""
    patterns = tuple(part for each in text.split(",") if (part := each.strip()))
    for pattern in patterns:
        if pattern.count("/") >= _PARTS or "" in pattern.split("/"):
            raise ExclusionError(
                f"{pattern!r} is no NAMESPACE, NAMESPACE/POD or NAMESPACE/POD/CONTAINER"
            )
    return patterns


def excludes(patterns: Sequence[str], namespace: str, pod: str, container: str = "") -> bool:
    """Whether a pattern names the container, its pod or its namespace; without a container, whether
    it excludes the whole pod."""
    names = (namespace, pod, container)
    return any(
        all(fnmatchcase(name, part) for name, part in zip(names, pattern.split("/"), strict=False))
        for pattern in patterns
        if container or pattern.count("/") < _PARTS - 1
    )
