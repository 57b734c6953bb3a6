"""Which pods are on the node, by both who tell of them: the runtime says what is there, the cluster
what it shall be.

A pod's labels and annotations change in the API after its sandbox was made, so there they count,
but for static pods: their source is the kubelet's, and the mirror in the API only shows it.
Whatever the API says of a pod's end, it has what it holds until the runtime lists it no more; and
one that was given to this node counts before the runtime has it. Pods are told apart by uid alone:
two of one name are two pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from agent.model import podwords
from agent.model.apipods import ApiPod
from agent.model.pods import Pod
from agent.model.podwords import Words


def words(told: Iterable[ApiPod]) -> dict[str, Words]:
    """By the runtime's uid, what counts of what the API says."""
    return {
        pod.runtime_uid: podwords.words(pod.labels, pod.annotations)
        for pod in told
        if not pod.mirror
    }


def present(
    told: Iterable[ApiPod], running: Iterable[Pod], said: Mapping[str, Words]
) -> tuple[Pod, ...]:
    """Sorted by uid, which is the runtime's. `said`: the words that count, also of pods that the
    API has no more."""
    pods = {pod.uid: _with(pod, said[pod.uid]) if pod.uid in said else pod for pod in running}
    for pod in told:
        uid = pod.runtime_uid
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


def _with(pod: Pod, said: Words) -> Pod:
    labels = _without(podwords.LABELS, pod.labels) | said.labels
    annotations = _without(podwords.ANNOTATIONS, pod.annotations) | said.annotations
    if (labels, annotations) == (pod.labels, pod.annotations):
        return pod
    return msgspec.structs.replace(pod, labels=labels, annotations=annotations)


def _without(keys: tuple[str, ...], texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if key not in keys}
