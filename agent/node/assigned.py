"""What the cluster tells of this node: the pods that it gave it, and the Node itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import msgspec

from agent.kube.objects import Change, ChangeKind, Objects
from agent.model import apinode, apipods
from agent.model.apinode import ApiNode, NodeObject
from agent.model.apipods import ApiPod, PodObject
from agent.model.devicelist import Published
from agent.model.objects import ObjectError

log = logging.getLogger(__name__)


class Assigned(msgspec.Struct, frozen=True):
    """One moment. `node` None: not told yet, or not there. `pods_told`: all pods are known, by the
    uid of the API. `devices`: what the Device object said when we began, None: not told yet."""

    node: ApiNode | None = None
    pods: dict[str, ApiPod] = {}
    pods_told: bool = False
    devices: Published | None = None


class Assignments:
    """Follows both. A pod that can't be read keeps its last good state, a server that is away
    changes nothing."""

    def __init__(self, objects: Objects, node_name: str, changed: Callable[[], None]) -> None:
        """`changed` is called on any thread, when something that decisions or reports are made of
        is another."""
        self._changed = changed
        self._lock = threading.Lock()
        self._node: ApiNode | None = None
        self._pods: dict[str, ApiPod] = {}
        self._pods_told = False
        self._pods_watch = objects.watch_pods(node_name, PodObject, self._pods_changed)
        self._node_watch = objects.watch_node(node_name, NodeObject, self._node_changed)

    def start(self) -> None:
        self._node_watch.start()
        self._pods_watch.start()

    def stop(self) -> None:
        self._node_watch.stop()
        self._pods_watch.stop()

    def now(self) -> Assigned:
        """What is known now."""
        with self._lock:
            return Assigned(self._node, dict(self._pods), self._pods_told)

    def troubles(self) -> tuple[str, ...]:
        """Why something is not told at present."""
        watches = self._node_watch, self._pods_watch
        return tuple(each.trouble for each in watches if each.trouble is not None)

    def _pods_changed(self, changes: Sequence[Change[PodObject]]) -> None:
        news = not self._pods_told
        for change in changes:
            uid = change.value.metadata.uid
            if change.kind is ChangeKind.DELETED:
                with self._lock:
                    news = self._pods.pop(uid, None) is not None or news
                continue
            try:
                # Its version differs with every heartbeat of a container's state.
                pod = msgspec.structs.replace(apipods.value(change.value), resource_version="")
            except ObjectError as error:
                log.error("%s", error)
                continue
            with self._lock:
                news = self._pods.get(uid) != pod or news
                self._pods[uid] = pod
        self._pods_told = True
        if news:
            self._changed()

    def _node_changed(self, changes: Sequence[Change[NodeObject]]) -> None:
        if not changes:
            return
        last = changes[-1]
        node = None if last.kind is ChangeKind.DELETED else apinode.value(last.value)
        with self._lock:
            news = node != self._node
            self._node = node
        if news:
            self._changed()
