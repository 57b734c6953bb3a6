"""Hints and what a merge of them answers.

A NUMA mask is an int whose bits are NUMA node ids; `None` as a mask names no node: any will do.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec


class TopologyHint(msgspec.Struct, frozen=True):
    """One set of NUMA nodes that a resource could come from. `score`: 0 or more."""

    mask: int | None
    preferred: bool
    score: int = 0
    unsatisfied: bool = False


Provider: TypeAlias = Mapping[str, Sequence[TopologyHint] | None]
"""Hints by resource: `None` has no preference, an empty sequence can't be satisfied."""


class MergeCause(enum.StrEnum):
    """Why a merged mask is not the preferred one; all that hold are given, in this order."""

    RESOURCE_LACKING = "resource-lacking"
    NOT_ON_ONE_NODE = "not-on-one-node"
    NOTHING_IN_COMMON = "nothing-in-common"
    HINT_NOT_PREFERRED = "hint-not-preferred"
    MASKS_DIFFER = "masks-differ"
    NODE_EXCLUSIVE = "node-exclusive"


class Pick(msgspec.Struct, frozen=True):
    """A hint by its place: `resource` is None for a provider without hints, `index` is None where
    the resource has no list or an empty one."""

    provider: int
    resource: str | None
    index: int | None


class Merged(msgspec.Struct, frozen=True):
    """What a merge chose and why.

    `mask` None: no restriction. `combined`: the winner's mask before the policy replaced it, if it
    did; None without a winner. `picks`: the hints that made the winner, one a resource. `lacking`:
    resources that nothing satisfies, or under SingleNUMANode no preferred hint of one node.
    """

    mask: int | None
    preferred: bool
    admit: bool
    score: int = 0
    unsatisfied: bool = False
    combined: int | None = None
    causes: tuple[MergeCause, ...] = ()
    picks: tuple[Pick, ...] = ()
    lacking: tuple[Pick, ...] = ()
