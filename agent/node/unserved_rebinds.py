"""RebindResources of this node that nobody has taken.

A leading scheduler of Topolet takes each object within seconds. Where none leads, the agent of the
node writes that the object failed, and why: nobody else would. A write is only for the version of
the object that nobody had taken, so a scheduler that takes it meanwhile is not overwritten."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.host.log_once import Problem
from agent.kube import kinds
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import ConflictError, KubeError, NotFoundError
from agent.model import rebind_resource
from agent.model.objects import ObjectError
from agent.model.rebind_resource import RebindPhase, RebindRequest, RebindStatus

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 120.0
"""Interval of the lists, which the API server answers from its cache."""
UNTAKEN_SECONDS: Final = 60.0
"""Less than the interval: an object in two lists failed."""


class UnservedRebinds:
    """One thread calls `step`. `clock` is monotonic; `now` returns seconds since 1970."""

    def __init__(
        self,
        cluster: Cluster,
        node_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._node = node_name
        self._clock = clock
        self._now = now
        self._seen: dict[str, float] | None = None
        self._problem = Problem(log, "RebindResources of the node: ")

    def step(self) -> None:
        """Never raises. The first step does nothing: agents of many nodes start together."""
        if self._seen is None:
            self._seen = {}
            return
        try:
            found = self._cluster.of_node(kinds.REBIND, self._node, _read)
        except NotFoundError:
            found = []
        except (KubeError, AccessError) as error:
            self._problem.report(str(error))
            return
        self._problem.clear()
        now = self._clock()
        waiting = [each for each in found if each is not None and not each.status.taken]
        self._seen = {each.uid: self._seen.get(each.uid, now) for each in waiting}
        for each in waiting:
            if now - self._seen[each.uid] >= UNTAKEN_SECONDS:
                self._fail(each)

    def _fail(self, request: RebindRequest) -> None:
        reason = "NoController: no scheduler of Topolet has taken it for more than a minute"
        status = RebindStatus(RebindPhase.FAILED, reason, rebind_resource.time_text(self._now()))
        body = rebind_resource.status_body(request, status)
        try:
            self._cluster.merge_status(kinds.REBIND, request.name, body)
        except (ConflictError, NotFoundError):
            return  # somebody has taken or deleted it
        except (KubeError, AccessError) as error:
            log.warning("RebindResource %s: %s", request.name, error)
            return
        log.warning("RebindResource %s: Failed: %s", request.name, reason)


def _read(raw: msgspec.Raw) -> RebindRequest | None:
    """None for an object that can't be read."""
    try:
        return rebind_resource.decode(bytes(raw))
    except ObjectError as error:
        log.warning("%s", error)
        return None
