"""The group of a pod: annotation `topolet.io/group: NAME/SIZE`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from agent.model.apiobjects import ApiPod

GROUP_ANNOTATION: Final = "topolet.io/group"
MAX_SIZE: Final = 64
"""Members of a group, all of which are on one node."""


class GroupError(ValueError):
    """The annotation is invalid; the message names the pod and the annotation."""


class PodGroup(msgspec.Struct, frozen=True):
    """The group as all its members name it."""

    namespace: str
    name: str
    size: int

    @property
    def title(self) -> str:
        return f"group {self.namespace}/{self.name}"

    def part(self, number: int) -> str:
        """The stand-in for a pod's uid of a part that no member has taken."""
        return f"{self.namespace}/{self.name}/{number}"


def group_of(pod: ApiPod) -> PodGroup | None:
    """Returns None for a pod without a group. Raises GroupError."""
    text = pod.annotations.get(GROUP_ANNOTATION)
    if text is None:
        return None
    match = _TEXT.fullmatch(text)
    if match is None:
        raise GroupError(
            f"pod {pod.title}: annotation {GROUP_ANNOTATION}: {text[:80]!r} is no NAME/SIZE"
        )
    size = int(match[2])
    if not 1 <= size <= MAX_SIZE:
        raise GroupError(
            f"pod {pod.title}: annotation {GROUP_ANNOTATION}: SIZE {size} is not 1 to {MAX_SIZE}"
        )
    return PodGroup(pod.namespace, match[1], size)


_TEXT: Final = re.compile(r"([a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)/([0-9]{1,4})", re.ASCII)
