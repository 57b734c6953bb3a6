"""The status of the NRI plugin's guard, which the guard writes into the file that it locks
(`agent.guard.records`), and its metrics. The guard serves no page of its own, to be small."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from typing import Final

import msgspec

from agent.guard import LOCK
from agent.host import files
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.telemetry.exposition import Declarations, Metric, single

_MOST_BYTES: Final = 4 << 10
_GUARD: Final = Declarations("topolet_nri_guard")
_READY: Final = _GUARD.gauge(
    "ready",
    "1 if the runtime asks the NRI plugin's guard before it creates a container, else 0; only on "
    "nodes with a guard.",
)
_VALIDATED: Final = _GUARD.counter(
    "validated_containers", "Containers that the guard was asked about, since its start."
)
_REFUSED: Final = _GUARD.counter(
    "refused_containers", "Containers that the guard refused, since its start."
)
DECLARED: Final = _GUARD.all
"""All metrics of the guard."""


class GuardStatus(msgspec.Struct, frozen=True):
    """What a guard last wrote. Numbers count from its start."""

    ready: bool = False
    """Whether the runtime asks it. False for a guard that does not run."""
    problem: str = ""
    """Why not."""
    too_old: bool = False
    """Whether the runtime has no validators, so that no guard can help."""
    validated: int = 0
    refused: int = 0
    sessions: int = 0


_decoder = msgspec.json.Decoder(GuardStatus)


def status(state_dir: str) -> GuardStatus | None:
    """None on a node without a guard: a guard that ends as it should removes its file. Raises
    OSError."""
    path = os.path.join(state_dir, LOCK)
    try:
        text = files.read(path, _MOST_BYTES)
        if not _is_locked(path):
            return GuardStatus(problem="the guard does not run")
    except FileNotFoundError:
        return None
    try:
        return bounds.decode(_decoder, text)
    except JsonError as error:
        return GuardStatus(problem=f"{path}: {error}")


def _is_locked(path: str) -> bool:
    """Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def metrics(state_dir: str) -> Iterable[Metric]:
    """None on a node without a guard."""
    try:
        guard = status(state_dir)
    except OSError:
        guard = None
    if guard is None:
        return ()
    return (
        single(_READY, int(guard.ready)),
        single(_VALIDATED, guard.validated),
        single(_REFUSED, guard.refused),
    )
