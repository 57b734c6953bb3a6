"""Events of pods: promised CPUs that a pod does not have, and invalid annotations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from agent.allocate.pools import ClaimRefusal
from agent.kube.events import Regarding
from agent.model.apiobjects import ApiPod
from agent.node.shortfalls import Shortfall

CLAIM_NOT_HONORED: Final = "CPUClaimNotHonored"
INVALID_ANNOTATION: Final = "InvalidAnnotation"
CONTROLLER: Final = "topolet.io/agent"
ACTION: Final = "AssignCPUs"
AGAIN_SECONDS: Final = 1800.0
"""The API server keeps an Event for an hour: what lasts is recorded again."""


class Records(Protocol):
    """Delivers Events."""

    def record(self, pod: Regarding, reason: str, note: str) -> None: ...


class PodEvents:
    """Records an Event when its cause appears, and every AGAIN_SECONDS while it lasts. Without
    `records` it does nothing."""

    def __init__(
        self, records: Records | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._clock = clock
        self._recorded: dict[tuple[str, str, str], float] = {}

    def record(
        self,
        shortfalls: Iterable[Shortfall],
        unread: Iterable[ClaimRefusal],
        known: Mapping[str, ApiPod],
    ) -> None:
        """`unread`: refusals of annotations that name no CPUs; `known`: the API's pods."""
        if self._records is None:
            return
        notes = [(each.uid, CLAIM_NOT_HONORED, each.text) for each in shortfalls]
        notes += [
            (each.uid, INVALID_ANNOTATION, f"annotation {each.key}: {each.reason}")
            for each in unread
        ]
        by_uid = {pod.runtime_uid: pod for pod in known.values()} if notes else {}
        now = self._clock()
        standing = {}
        for each in notes:
            uid, reason, note = each
            pod = by_uid.get(uid)
            if pod is None:
                continue
            before = self._recorded.get(each)
            if before is None or now - before >= AGAIN_SECONDS:
                self._records.record(Regarding(pod.namespace, pod.name, pod.uid), reason, note)
                before = now
            standing[each] = before
        self._recorded = standing
