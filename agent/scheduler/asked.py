"""Pods that kube-scheduler asks about: what is said at one verb serves the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

import msgspec

from agent.allocate.place.wish import Wish, wish_of
from agent.model.apipods import ApiPod
from agent.scheduler.bindings import PodName
from agent.scheduler.groupname import Group, group_of

MOST: Final = 4096
"""Pods remembered. Who is bound after that many others were asked about is looked up anew."""


class Asked(msgspec.Struct, frozen=True):
    """One pod, understood."""

    pod: PodName
    wish: Wish
    group: Group | None = None


def asked(pod: ApiPod) -> Asked:
    """Raises WishError, GroupError, which name the pod and the field."""
    return Asked(PodName(pod.namespace, pod.name, pod.uid), wish_of(pod), group_of(pod))


class Recent:
    """The pods that were asked about last. Any thread may ask."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._by_uid: OrderedDict[str, tuple[str, Asked]] = OrderedDict()

    def of(self, pod: ApiPod) -> Asked:
        """Read anew where the pod has changed. Raises WishError, GroupError."""
        with self._lock:
            version, known = self._by_uid.get(pod.uid, ("", None))
        if known is not None and version and version == pod.resource_version:
            return known
        understood = asked(pod)
        with self._lock:
            self._by_uid[pod.uid] = pod.resource_version, understood
            self._by_uid.move_to_end(pod.uid)
            if len(self._by_uid) > self._most:
                self._by_uid.popitem(last=False)
        return understood

    def get(self, uid: str) -> Asked | None:
        with self._lock:
            _, known = self._by_uid.get(uid, ("", None))
        return known

    def forget(self, uid: str) -> None:
        """It is bound: nobody asks any more."""
        with self._lock:
            self._by_uid.pop(uid, None)
