"""Ends what was held for a group for too long, and reservations that no watch has shown to be
bound: those only when the API server says that the pod is not there, as a watch that lags must not
free what a pod has."""

from __future__ import annotations

import logging

from agent.scheduler.bindings import Bindings, PodError, PodName
from agent.scheduler.cluster import Cluster
from agent.scheduler.groups import Groups
from agent.scheduler.reservations import Reservation

log = logging.getLogger(__name__)


class Expiry:
    """One thread takes the steps."""

    def __init__(self, cluster: Cluster, groups: Groups, bindings: Bindings) -> None:
        self._cluster = cluster
        self._groups = groups
        self._bindings = bindings

    def step(self) -> None:
        """Looks at all whose time has passed. Never raises."""
        with self._cluster.lock:
            self._groups.expire()
        for each in self._cluster.overdue():
            try:
                if self._bound(each):
                    self._cluster.confirm(each.uid)
                elif self._cluster.expire(each):
                    log.warning("pod %s: its reservation on %s ends", each.title, each.node)
            except PodError as error:
                log.warning("whether it is bound can't be asked: %s", error)
                self._cluster.confirm(each.uid)

    def _bound(self, reservation: Reservation) -> bool:
        namespace, _, name = reservation.title.partition("/")
        pod = self._bindings.pod(PodName(namespace, name, reservation.uid))
        return pod is not None and bool(pod.node)
