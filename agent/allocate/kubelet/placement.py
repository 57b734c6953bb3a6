"""What comes of placing a container, and why, as data."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from agent.allocate.kubelet.demand import SharedReason


class RefusalReason(enum.StrEnum):
    """Why a container can't be placed."""

    NOT_ENOUGH_CPUS = "not enough CPUs are free"
    NO_WHOLE_CORES = "the request is no whole number of cores"
    NOT_ENOUGH_CORES = "not enough whole cores are free"
    DEFAULT_EMPTIED = "nothing would be left to share"


class Exclusive(msgspec.Struct, frozen=True, tag="exclusive"):
    """`cpus`: the container's own from now on; `reused`: those of them that an init container of
    its pod had; `repeated`: it had all of them before."""

    cpus: int
    reused: int = 0
    repeated: bool = False


class Shared(msgspec.Struct, frozen=True, tag="shared"):
    """The container runs on the default set."""

    reason: SharedReason


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The state stays as it was. `available`: CPUs that could be had (those of whole cores, where
    these matter); `threads`: CPUs of a core; `held`: what the container already has and keeps."""

    reason: RefusalReason
    requested: int
    available: int
    threads: int
    held: int = 0


Placement: TypeAlias = Exclusive | Shared | Refused
