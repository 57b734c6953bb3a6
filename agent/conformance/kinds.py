"""Which vectors there are, and how a case tells its kind: by its keys.

A kind is added by an entry in KINDS and a module of its name (dashes become underscores) that has
what Judge tells.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, cast

import msgspec

from agent.conformance.files import Case
from agent.conformance.verdict import Difference, Verdict


class Judge(Protocol):
    """What the module of a kind has."""

    @property
    def DIFFERENCES(self) -> Sequence[Difference]:  # noqa: N802
        """All that `judge` may declare."""

    def judge(self, case: Case) -> Verdict:
        """Raises an ArithmeticError, AttributeError, LookupError, TypeError or ValueError for a
        case that it can't read."""


class Kind(msgspec.Struct, frozen=True):
    """`keys`: what every case of it has; a case may have more."""

    name: str
    keys: frozenset[str]
    package: str = "agent.conformance"

    def load(self) -> Judge:
        """Imports the module."""
        module = importlib.import_module(f"{self.package}.{self.name.replace('-', '_')}")
        return cast(Judge, module)


def _kind(name: str, keys: str) -> Kind:
    return Kind(name, frozenset(keys.split()))


KINDS: Final = (
    _kind(
        "koordinator-take-cpus",
        "shape numbering maxRef available need bind exclusive strategy allocated expect",
    ),
    _kind("koordinator-merge-hints", "policy numaNodes status exclusive hints expect"),
    _kind("kubelet-take-cpus", "shape numbering l3 available need options expect"),
    _kind(
        "kubelet-static-policy",
        "shape numbering l3 options topologyPolicy pods steps expect",
    ),
    _kind("kubelet-merge-hints", "policy options numaNodes hints expect"),
    _kind("koordinator-cpuset-decisions", "op expect"),
    _kind("kubelet-state-files", "file"),
    _kind("koordinator-device-requests", "pod devices expect"),
    _kind(
        "koordinator-device-allocate",
        "pod devices allocated strategy numa expect",
    ),
    _kind("koordinator-node-numa", "shape numbering allocatable zones allocated pod expect"),
    _kind("nrt-match", "pod nrt nodeAllocatable expect"),
)


def find(keys: Iterable[str], kinds: Sequence[Kind] = KINDS) -> Kind | None:
    """The kind of a case with these keys: of those whose keys it all has, the one with most."""
    present = set(keys)
    fitting = [kind for kind in kinds if kind.keys <= present]
    return max(fitting, key=lambda kind: len(kind.keys), default=None)
