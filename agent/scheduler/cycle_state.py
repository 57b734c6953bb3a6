"""The pods of recent scheduling cycles: what one verb has read of a pod serves the next verb."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

import msgspec

from agent.allocate.node_allocator.pod_request import PodRequest, request_of
from agent.model.apiobjects import ApiPod
from agent.scheduler.binding_api import PodName
from agent.scheduler.pod_group import PodGroup, group_of

MAX_PODS: Final = 4096
"""Pods kept. A pod that is bound after so many others is read from the API server again."""


class PodInfo(msgspec.Struct, frozen=True):
    """What the scheduler needs of a pod."""

    pod: PodName
    pod_request: PodRequest
    group: PodGroup | None = None


def pod_info(pod: ApiPod) -> PodInfo:
    """Raises WishError and GroupError, which name the pod and the field."""
    return PodInfo(PodName(pod.namespace, pod.name, pod.uid), request_of(pod), group_of(pod))


class PodInfoCache:
    """The pods of the last requests. Safe for many threads."""

    def __init__(self, most: int = MAX_PODS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._by_uid: OrderedDict[str, tuple[str, PodInfo]] = OrderedDict()

    def of(self, pod: ApiPod) -> PodInfo:
        """Reads the pod again where its resourceVersion has changed. Raises WishError and
        GroupError."""
        with self._lock:
            version, known = self._by_uid.get(pod.uid, ("", None))
        if known is not None and version and version == pod.resource_version:
            return known
        info = pod_info(pod)
        with self._lock:
            self._by_uid[pod.uid] = pod.resource_version, info
            self._by_uid.move_to_end(pod.uid)
            if len(self._by_uid) > self._most:
                self._by_uid.popitem(last=False)
        return info

    def get(self, uid: str) -> PodInfo | None:
        with self._lock:
            _, known = self._by_uid.get(uid, ("", None))
        return known

    def forget(self, uid: str) -> None:
        """Drops a pod that is bound."""
        with self._lock:
            self._by_uid.pop(uid, None)
