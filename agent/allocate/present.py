"""Which pods are on the node: what the API server says and what the runtime has, put together.

The runtime has the last word on what runs. A pod whose end the API knows of, or that it does not
know any more, keeps what it holds until the runtime has let go of it; one that was sent here counts
before the runtime has it. Pods are told apart by uid alone: two of one name are two pods.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.model.apipods import ApiPod
from agent.model.pods import Pod


def present(told: Iterable[ApiPod], running: Iterable[Pod]) -> tuple[Pod, ...]:
    """Sorted by uid, which is the runtime's. What the API says of labels, annotations and class is
    newer than what the runtime was given when the pod began; the rest is the runtime's."""
    by_uid = {pod.runtime_uid: pod for pod in told}
    pods = {pod.uid: _merged(pod, by_uid.get(pod.uid)) for pod in running}
    for uid, pod in by_uid.items():
        if uid not in pods and coming(pod):
            pods[uid] = Pod(
                uid,
                pod.namespace,
                pod.name,
                pod.labels,
                pod.annotations,
                pod.kube_class,
                pod.created_at,
            )
    return tuple(pods[uid] for uid in sorted(pods))


def coming(pod: ApiPod) -> bool:
    """Whether a pod that the runtime does not have will still be started here. A kubelet starts
    none whose end was asked for."""
    return bool(pod.node) and not pod.terminal and not pod.deleted


def named(pods: Iterable[Pod]) -> list[tuple[str, str]]:
    """Namespace and name of each, as the fingerprint wants them. Once where two share a name: the
    kubelet's list, that a scheduler compares it with, has the living one only."""
    return sorted({(pod.namespace, pod.name) for pod in pods})


def _merged(pod: Pod, told: ApiPod | None) -> Pod:
    if told is None:
        return pod
    return msgspec.structs.replace(
        pod,
        labels=told.labels,
        annotations=told.annotations,
        kube_class=told.kube_class or pod.kube_class,
    )
