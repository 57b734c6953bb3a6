"""Ends pods by the Eviction API (policy/v1), which keeps to disruption budgets and lets a pod have
its grace period."""

from __future__ import annotations

import contextlib
import enum
from typing import Any, Final

from agent.kube.errors import (
    ConflictError,
    NotFoundError,
    RejectedError,
    TooManyRequestsError,
)
from agent.kube.kinds import pod_path
from agent.kube.transport import Transport
from agent.scheduler.podstatus import condition, patch_status
from agent.scheduler.sacrifice import Tenant

DISRUPTION_TARGET: Final = "DisruptionTarget"
PREEMPTION: Final = "PreemptionByScheduler"
"""The reason by which kube-scheduler tells that a pod ends for another one: as long as such a pod
ends on a pod's nominated node, it looks for no other victims and leaves the nomination."""


class Fate(enum.Enum):
    """What the API server says to an eviction: the pod ends (or, of a question only, would), is
    gone already, or has to stay, as a budget says, or another pod with its name is there."""

    ENDS = "ends"
    GONE = "gone"
    STAYS = "stays"


class Evictions:
    """Any thread may ask. All methods raise KubeError and AccessError."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def would(self, victim: Tenant) -> Fate:
        """What `evict` would come to now."""
        return self._evict(victim, {"dryRun": ["All"]})

    def evict(self, victim: Tenant) -> Fate:
        return self._evict(victim, {})

    def tell(self, victim: Tenant, title: str) -> None:
        """Writes into an ending pod's status that it ends for the pod of that title; nothing where
        it has ended."""
        message = f"evicted to make room for pod {title}"
        told = condition(DISRUPTION_TARGET, PREEMPTION, message)
        with contextlib.suppress(NotFoundError, RejectedError):
            patch_status(
                self._transport, victim.namespace, victim.name, victim.uid, {"conditions": [told]}
            )

    def _evict(self, victim: Tenant, options: dict[str, Any]) -> Fate:
        wanted = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": victim.namespace, "name": victim.name},
            "deleteOptions": {"preconditions": {"uid": victim.uid}, **options},
        }
        try:
            self._transport.create(f"{pod_path(victim.namespace, victim.name)}/eviction", wanted)
        except (NotFoundError, ConflictError):
            return Fate.GONE
        except TooManyRequestsError:
            return Fate.STAYS
        return Fate.ENDS
