"""What a node-local decision says."""

from __future__ import annotations

import enum

import msgspec

from agent.allocate.kubelet.placement import Refused
from agent.model.cpuset import EMPTY, CpuSet


class Answer(msgspec.Struct, frozen=True):
    """`cpus`: the container's own, empty where it shares; an ended container's stay with its pod,
    whose other containers may have them too. `original`: those of `cpus` that it had before it was
    resized. `refused`: why it has no CPUs, or not as many as it wants (None: it has, or it ended).
    """

    cpus: CpuSet = EMPTY
    original: CpuSet = EMPTY
    refused: Refused | None = None


class MoveReason(enum.StrEnum):
    """Why the CPUs of a container change."""

    SHRINK = "it wants fewer CPUs"
    WIDEN = "it wants more CPUs"
    REPLACE = "some of its CPUs are no longer to be had"
    DEFRAGMENT = "better CPUs are free"
    MAKE_ROOM = "another container needs its CPUs more"


class Move(msgspec.Struct, frozen=True):
    """An owner's CPUs change. No CPU of `target` is another owner's in `source`, so moves may be
    made in any order, at the same time as the answers to new containers."""

    uid: str
    name: str
    source: CpuSet
    target: CpuSet
    reason: MoveReason


class Decision(msgspec.Struct, frozen=True):
    """`answers`: one for each claim, by pod uid and container name (none under policy `none`).
    `pool`: what is left to share. `again`: once this is in force, another decision may do better.
    """

    answers: dict[tuple[str, str], Answer]
    pool: CpuSet
    moves: tuple[Move, ...] = ()
    again: bool = False
