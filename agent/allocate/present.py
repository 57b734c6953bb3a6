"""The pods on the node, by two sources: the runtime lists the pods that exist, and the cluster has
their wanted state.

A pod's labels and annotations change in the API after its sandbox was made, so there they count,
but for static pods: their source is the kubelet's, and the mirror in the API only shows it. A pod
that ended or was deleted in the API keeps what it holds while the runtime lists it; a pod that was
assigned to this node counts before the runtime has it. The uid alone identifies a pod: two pods of
one name are two pods."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec

from agent.model.apiobjects import ApiPod
from agent.model.pod.pods import ANNOTATIONS, LABELS, Pod, PodMetadata, pod_metadata


def metadata_by_uid(pods: Iterable[ApiPod]) -> dict[str, PodMetadata]:
    """By the runtime's uid, the labels and annotations that the API server has."""
    return {
        pod.runtime_uid: pod_metadata(pod.labels, pod.annotations) for pod in pods if not pod.mirror
    }


def present(
    api_pods: Iterable[ApiPod], running: Iterable[Pod], metadata: Mapping[str, PodMetadata]
) -> tuple[Pod, ...]:
    """Sorted by uid, which is the runtime's. `metadata`: the labels and annotations that
    count, also of pods that the API does not have any more."""
    pods = {
        pod.uid: _with(pod, metadata[pod.uid]) if pod.uid in metadata else pod for pod in running
    }
    for pod in api_pods:
        uid, named = pod.runtime_uid, _named(pod)
        if uid in pods:
            pods[uid] = msgspec.structs.replace(pods[uid], named=named)
        elif coming(pod):
            pods[uid] = Pod(
                uid,
                pod.namespace,
                pod.name,
                pod.labels,
                pod.annotations,
                pod.kube_class,
                pod.created_at,
                named=named,
            )
    return tuple(pods[uid] for uid in sorted(pods))


def admitted(pods: Iterable[Pod], there: Container[str], *, static: bool) -> tuple[Pod, ...]:
    """Those that can be decided about. `there`: by uid, those that the runtime has or is about to
    get. A kubelet with the static policy gives CPUs to Guaranteed pods as it admits them, before
    their sandbox comes: until then these CPUs are unknown, and the claim of such a pod does not
    count."""
    return tuple(
        pod for pod in pods if not static or pod.uid in there or pod.kube_class != "guaranteed"
    )


def coming(pod: ApiPod) -> bool:
    """Whether a pod that the runtime does not have will still be started here. A kubelet starts
    none whose end was asked for."""
    return bool(pod.node) and not pod.terminal and not pod.deleted


def _named(pod: ApiPod) -> tuple[str, ...]:
    return tuple(each.name for each in (*pod.containers, *pod.init_containers))


def _with(pod: Pod, metadata: PodMetadata) -> Pod:
    labels = _without(LABELS, pod.labels) | metadata.labels
    annotations = _without(ANNOTATIONS, pod.annotations) | metadata.annotations
    if (labels, annotations) == (pod.labels, pod.annotations):
        return pod
    return msgspec.structs.replace(pod, labels=labels, annotations=annotations)


def _without(keys: Container[str], texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if key not in keys}
