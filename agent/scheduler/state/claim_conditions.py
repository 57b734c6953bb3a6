"""The condition topolet.io/CPUClaimRefused of pods whose CPU claim the agent of their node refuses.

The agent names these pods in its NodeResourceTopology, and records Events, which expire. It has no
permission to write pods, so the leading scheduler sets the condition: True with the agent's reason
when the refusal lasts, False when the report no longer names the pod. The condition of a pod on
another node than the report's is never set.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final

from agent.kube.auth import AccessError
from agent.kube.errors import (
    KubeError,
    NotFoundError,
    RejectedError,
    TooManyRequestsError,
    UnreachableError,
)
from agent.kube.schedule import Backoff
from agent.kube.transport import Transport
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pods_api import condition, patch_status
from agent.scheduler.state.records import CLAIM_REFUSED

LASTING_SECONDS: Final = 10.0
"""How long a claim is refused before the condition says so: the pod that had its CPUs before may
still be ending."""
MAX_PER_STEP: Final = 50
"""Pods that one step writes at most."""

log = logging.getLogger(__name__)


class _Wanted:
    """The condition that a pod is to get. `reason` "": the claim is not refused any more. `due` is
    when the next attempt may begin."""

    def __init__(self, title: str, due: float) -> None:
        self.title = title
        self.reason = ""
        self.due = due
        self.backoff = Backoff(random.random)


class ClaimConditions:
    """One thread calls `step`. `leading` returns whether this process leads; only the leader
    writes."""

    def __init__(
        self,
        transport: Transport,
        cluster: SchedulerCache,
        leading: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._cluster = cluster
        self._leading = leading
        self._clock = clock
        self._serial: int | None = None
        # Both by node and uid. `_written` has the title and the written reason.
        self._wanted: dict[str, dict[str, _Wanted]] = {}
        self._written: dict[str, dict[str, tuple[str, str]]] = {}

    def step(self) -> None:
        """Reads the reports of the nodes that changed, and writes the conditions that are due.
        Never raises."""
        if not self._leading():
            self._serial = None
            self._wanted.clear()
            self._written.clear()
            return
        self._read_reports()
        now = self._clock()
        due = [
            (node, uid)
            for node, of_node in self._wanted.items()
            for uid, each in of_node.items()
            if each.due <= now
        ]
        for node, uid in due[:MAX_PER_STEP]:
            if not self._try(node, uid):
                break

    def _read_reports(self) -> None:
        serial = 0 if self._serial is None else self._serial
        with self._cluster.lock:
            changes = self._cluster.reports_changed_since(serial)
            names = changes.names
            if self._serial is None or names is None:
                names = frozenset(each.name for each in self._cluster.nodes())
            nodes = {name: self._cluster.node(name) for name in names}
            found = {name: of.claim_refusals() if of else {} for name, of in nodes.items()}
            self._serial = changes.serial
        for name, refusals in found.items():
            known = self._cluster.pod
            written = self._written.pop(name, {})
            if written := {uid: each for uid, each in written.items() if known(uid)}:
                self._written[name] = written
            resolved = {uid: (title, "") for uid, (title, reason) in written.items() if reason}
            before = self._wanted.pop(name, {})
            if wanted := self._changed(resolved | refusals, before, written):
                self._wanted[name] = wanted

    def _changed(
        self,
        refusals: dict[str, tuple[str, str]],
        before: dict[str, _Wanted],
        written: dict[str, tuple[str, str]],
    ) -> dict[str, _Wanted]:
        """The conditions to write. `before`: those that the last report of the node wanted, which
        keep their time."""
        wanted = {}
        for uid, now in refusals.items():
            if written.get(uid) == now:
                continue
            title, reason = now
            each = before.get(uid)
            if each is None or bool(each.reason) is not bool(reason):
                each = _Wanted(title, self._clock() + (LASTING_SECONDS if reason else 0))
            each.reason = reason
            wanted[uid] = each
        return wanted

    def _try(self, node: str, uid: str) -> bool:
        """Returns False if the API server can't answer other requests now."""
        each = self._wanted[node][uid]
        namespace, _, name = each.title.partition("/")
        status, reason = ("True", "ClaimRefused") if each.reason else ("False", "ClaimNotRefused")
        shown = condition(CLAIM_REFUSED, reason, each.reason, status)
        try:
            patch_status(self._transport, namespace, name, uid, {"conditions": [shown]})
        except (NotFoundError, RejectedError) as error:
            log.info("pod %s gets no condition %s: %s", each.title, CLAIM_REFUSED, error)
        except (KubeError, AccessError) as error:
            each.due = self._clock() + each.backoff.next()
            log.warning("pod %s: condition %s is not set: %s", each.title, CLAIM_REFUSED, error)
            return not isinstance(error, TooManyRequestsError | UnreachableError)
        self._written.setdefault(node, {})[uid] = (each.title, each.reason)
        del self._wanted[node][uid]
        return True
