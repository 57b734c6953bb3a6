"""Whether the watches are up to date: how long each was out of touch with the API server, and
whether it has caught up after a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from agent.kube import wire
from agent.kube.listwatch import ListWatch
from agent.kube.schedule import WatchPace
from agent.kube.transport import Transport

# The time in which a watch must report a change that the server has; else it lists all objects.
PATIENCE_SECONDS: Final = 2.0


def pace(stale_seconds: float) -> WatchPace:
    """A scheduler requests watches more often than an agent does, since there are few schedulers.
    It renews a watch three times in `stale_seconds`: the answer shows that the server still serves
    a watch without events."""
    return WatchPace(
        watch_seconds=stale_seconds / 3, grace_seconds=5.0, cap_seconds=5.0, return_seconds=0.5
    )


class Watched(Protocol):
    """The part of a watch that `stale` reads."""

    @property
    def age_seconds(self) -> float: ...

    @property
    def trouble(self) -> str | None: ...


def stale(watches: Mapping[str, Watched], stale_seconds: float) -> str | None:
    """Names the watch that has been out of touch longest, by resource, with its error; None where
    none is too old."""
    resource, oldest = max(watches.items(), key=lambda each: each[1].age_seconds)
    age_seconds = oldest.age_seconds
    if age_seconds <= stale_seconds:
        return None
    text = f"the watch of {resource} has been out of touch for {age_seconds:.0f} s"
    return f"{text}: {oldest.trouble}" if oldest.trouble else text


class CatchUp:
    """One round of catching up. Asks the API server for its present resourceVersion, which counts
    the changes of all objects: a watch that has reached it has reported all earlier changes. A
    watch of objects that do not change never reaches it, so it lists all objects again after
    PATIENCE_SECONDS."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._proofs: dict[ListWatch[Any], _Proof] = {}

    def step(self, watch: ListWatch[Any], passed_seconds: float) -> None:
        """One step for a watch that has not caught up. `passed_seconds` is the time since the last
        step. Raises StoreError."""
        proof = self._proofs.get(watch)
        if proof is None or proof.breaks != watch.breaks:
            if watch.trouble is not None or not watch.synced:
                return  # it has to reach the server first
            breaks, reached = watch.breaks, watch.version
            proof = self._proofs[watch] = _Proof(breaks, self._version(watch.path))
            if reached is not None and _behind(proof.version, reached):
                # The server was restored from a backup.
                proof.listed = True
                watch.resync()
        reached = watch.version
        if not proof.listed and reached is not None and wire.not_newer(proof.version, reached):
            watch.shown(proof.breaks)
        elif not proof.listed and proof.waited_seconds >= PATIENCE_SECONDS:
            proof.listed = True
            watch.resync()
        proof.waited_seconds += passed_seconds

    def _version(self, path: str) -> str:
        """The present version in etcd, not in the server's cache."""
        page = wire.page(f"GET {path}", self._transport.get(path, {"limit": 1}))
        return page.metadata.resource_version


class _Proof(msgspec.Struct):
    """A watch with the same `breaks` has caught up when it reaches `version`. `listed`: it lists
    all objects again instead."""

    breaks: int
    version: str
    waited_seconds: float = 0.0
    listed: bool = False


def wait_until_caught_up(
    transport: Transport,
    watches: Callable[[], Mapping[str, ListWatch[Any]]],
    wait: Callable[[float], bool],
) -> bool:
    """Returns False where `wait`, which pauses for so many seconds, returns True to stop. Raises
    StoreError."""
    round_ = CatchUp(transport)
    while behind := [each for each in watches().values() if not each.caught_up]:
        for each in behind:
            round_.step(each, _STEP_SECONDS)
        if wait(_STEP_SECONDS):
            return False
    return True


def _behind(version: str, reached: str) -> bool:
    return version != reached and wire.not_newer(version, reached)


_STEP_SECONDS: Final = 0.02
