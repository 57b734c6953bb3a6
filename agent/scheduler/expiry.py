"""Ends what was held for a group for too long, and reservations that no watch has shown to be
bound: those only when the API server says that the pod is not there, as a watch that lags must not
free what a pod has."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from agent.kube.errors import MalformedError, NotFoundError, StoreError
from agent.kube.kinds import pod_path
from agent.kube.transport import Transport
from agent.model import jsontext
from agent.model.jsontext import JsonError
from agent.scheduler.cluster import Cluster
from agent.scheduler.groups import Groups
from agent.scheduler.reservations import Reservation

log = logging.getLogger(__name__)


class Expiry:
    """One thread takes the steps."""

    def __init__(self, cluster: Cluster, groups: Groups, transport: Transport) -> None:
        self._cluster = cluster
        self._groups = groups
        self._transport = transport

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
            except StoreError as error:
                log.warning("pod %s: whether it is bound can't be asked: %s", each.title, error)
                self._cluster.confirm(each.uid)

    def _bound(self, reservation: Reservation) -> bool:
        namespace, _, name = reservation.title.partition("/")
        path = pod_path(namespace, name)
        try:
            pod = jsontext.decode(_pods, self._transport.get(path))
        except NotFoundError:
            return False
        except JsonError as error:
            raise MalformedError(f"GET {path}: {error}") from error
        return pod.metadata.uid == reservation.uid and bool(pod.spec.node_name)


class _Metadata(msgspec.Struct, frozen=True):
    uid: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()


_pods: Final = msgspec.json.Decoder(_Pod)
