"""The kinds of vectors. A case shows its kind by its keys and by the value of `op`.

A kind is added by an entry in KINDS and a module of its name (dashes become underscores) that
implements Judge."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final, Protocol, cast

import msgspec

from agent.conformance.files import Case, CaseVerdict, Difference


class Judge(Protocol):
    """What the module of a kind has."""

    @property
    def DIFFERENCES(self) -> Sequence[Difference]:  # noqa: N802
        """All that `judge` may declare."""

    def judge(self, case: Case) -> CaseVerdict:
        """Raises an ArithmeticError, AttributeError, LookupError, TypeError or ValueError for a
        case that it can't read."""


class CaseKind(msgspec.Struct, frozen=True):
    """`keys`: those that every case has; a case may have more. `ops`: the values of the key `op`,
    empty for a kind without that key."""

    name: str
    keys: frozenset[str]
    package: str = "agent.conformance"
    ops: tuple[str, ...] = ()

    def fits(self, case: Case) -> bool:
        """Whether the case may be of this kind."""
        return self.keys <= case.keys() and (not self.ops or case.get("op") in self.ops)

    def load(self) -> Judge:
        """Imports the module."""
        module = importlib.import_module(f"{self.package}.{self.name.replace('-', '_')}")
        return cast(Judge, module)


def _kind(name: str, keys: str, ops: str = "") -> CaseKind:
    return CaseKind(name, frozenset(keys.split()), ops=tuple(ops.split()))


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
    _kind("koordinator-cpuset-decisions", "op expect", ops="pools hook hostapp"),
    _kind("kubelet-state-files", "file"),
    _kind("koordinator-device-requests", "pod devices expect"),
    _kind(
        "koordinator-device-allocate",
        "pod devices allocated strategy numa expect",
    ),
    _kind("koordinator-node-numa", "shape numbering allocatable zones allocated pod expect"),
    _kind("nrt-match", "pod nrt nodeAllocatable expect"),
)


def find(case: Case, kinds: Sequence[CaseKind] = KINDS) -> CaseKind | None:
    """The kind of a case: of those that it fits, the one with most keys."""
    fitting = [kind for kind in kinds if kind.fits(case)]
    return max(fitting, key=lambda kind: len(kind.keys), default=None)
