"""Which group a pod says it belongs to: annotation `topolet.io/group: NAME/SIZE`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from agent.model.apipods import ApiPod

GROUP: Final = "topolet.io/group"
LARGEST: Final = 64
"""Members of a group: all of them are on one node."""


class GroupError(ValueError):
    """An annotation that makes no sense; the message names the pod and the annotation."""


class Group(msgspec.Struct, frozen=True):
    """What all its members say."""

    namespace: str
    name: str
    size: int

    @property
    def title(self) -> str:
        return f"group {self.namespace}/{self.name}"

    def part(self, number: int) -> str:
        """What a part that nobody took is known by, in place of a pod's uid."""
        return f"{self.namespace}/{self.name}/{number}"


def group_of(pod: ApiPod) -> Group | None:
    """None for a pod of no group. Raises GroupError."""
    text = pod.annotations.get(GROUP)
    if text is None:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise GroupError(f"pod {pod.title}: annotation {GROUP}: {text[:80]!r} is no NAME/SIZE")
    size = int(match[2])
    if not 1 <= size <= LARGEST:
        raise GroupError(f"pod {pod.title}: annotation {GROUP}: SIZE {size} is not 1 to {LARGEST}")
    return Group(pod.namespace, match[1], size)


_TEXT: Final = re.compile(r"([a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)/([0-9]{1,4})", re.ASCII)
