"""The pods on the node, from two sources: the runtime lists the pods that exist, and the API server
has their desired state.

- Labels and annotations are those of the API, because they can change after the sandbox was
  created. Those of a static pod come from the kubelet; its mirror pod in the API is only a copy.
- A mirror pod names the uid of another pod, and every client that may create pods can write one.
  Only mirror pods that the Node controls are written by the kubelet (Kubernetes:
  plugin/pkg/admission/noderestriction/admission.go, admitPodCreate, and
  deploy/policies/mirror-pods.yaml); all others are ignored.
- A pod that ended or was deleted in the API keeps its resources while the runtime lists it, with
  the last known metadata. A pod that is bound to this node counts before the runtime has it.
- Only the uid identifies a pod: two pods with the same name are two pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec

from agent.allocate.batch import batch_excess, batch_resources
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC, AnnotationError
from agent.model.pod.apiobjects import ApiNode, ApiPod, unequal_cpu
from agent.model.pod.pods import ANNOTATIONS, LABELS, Pod, PodMetadata, pod_metadata

_MAX_UID: Final = 64
"""A kubelet's hash of the source of a static pod has 32 characters, and its uid 36."""


def vouched(pods: Mapping[str, ApiPod], node: ApiNode | None) -> dict[str, ApiPod]:
    """The pods of a node without the mirror pods that its kubelet did not write, and without mirror
    pods that name the same uid as another pod. `node` None: the uid of the Node is unknown."""
    found = {uid: pod for uid, pod in pods.items() if not pod.mirror or _by_kubelet(pod, node)}
    pods_of_uid = Counter(pod.runtime_uid for pod in found.values())
    return {
        uid: pod
        for uid, pod in found.items()
        if not pod.mirror or pods_of_uid[pod.runtime_uid] == 1
    }


def _by_kubelet(mirror: ApiPod, node: ApiNode | None) -> bool:
    """Whether the Node controls the mirror pod, and its uid can be the name of a folder. While the
    Node's uid is unknown, a controlling Node of its name is enough."""
    if not 0 < len(mirror.runtime_uid) <= _MAX_UID:
        return False
    node_uid = node.uid if node is not None else ""
    return mirror.controlling_node == node_uid if node_uid else bool(mirror.controlling_node)


def in_api(pods: Iterable[Pod], api_pods: Iterable[ApiPod]) -> dict[str, ApiPod]:
    """The API's objects of these pods, by the runtime's uid, without pods that ended. The names
    must be equal too, because a mirror pod may name any uid."""
    names = {pod.uid: pod.title for pod in pods}
    return {
        each.runtime_uid: each
        for each in api_pods
        if not each.terminal and names.get(each.runtime_uid) == each.title
    }


def metadata_by_uid(pods: Iterable[ApiPod]) -> dict[str, PodMetadata]:
    """The metadata in the API by the runtime's uid, without mirror pods and pods that ended."""
    return {
        pod.runtime_uid: pod_metadata(
            pod.labels, pod.annotations, unequal_cpu(pod), _batch_excess(pod)
        )
        for pod in pods
        if not pod.mirror and not pod.terminal
    }


def present(
    api_pods: Iterable[ApiPod], here: Iterable[Pod], metadata: Mapping[str, PodMetadata]
) -> tuple[Pod, ...]:
    """The pods on the node, sorted by the runtime's uid. `here`: those that the runtime lists or a
    frontend announced. `metadata`: the last known metadata, also of pods that the API no longer
    has."""
    pods = {pod.uid: _with(pod, metadata[pod.uid]) if pod.uid in metadata else pod for pod in here}
    for pod in api_pods:
        uid, named = pod.runtime_uid, _named(pod)
        if pod.terminal or (uid in pods and pod.title != pods[uid].title):
            continue
        if uid in pods:
            pods[uid] = msgspec.structs.replace(
                pods[uid], named=named, unequal=unequal_cpu(pod), batch_excess=_batch_excess(pod)
            )
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
                unequal=unequal_cpu(pod),
                batch_excess=_batch_excess(pod),
            )
    return tuple(pods[uid] for uid in sorted(pods))


def decidable(
    pods: Iterable[Pod], created_uids: Container[str], *, static: bool
) -> tuple[Pod, ...]:
    """The pods to decide about: not those whose CPUs a static kubelet has not assigned yet. It
    assigns CPUs to a Guaranteed pod when it admits the pod, before the sandbox is created; until
    then these CPUs are unknown, and the pod's claim does not count.

    `created_uids`: the runtime has or is about to create the pods with these uids.
    `static`: the kubelet has the static policy."""
    return tuple(
        pod
        for pod in pods
        if not static or pod.uid in created_uids or pod.kube_class != "guaranteed"
    )


def coming(pod: ApiPod) -> bool:
    """Whether the kubelet will still start a pod that the runtime does not have. It does not start
    a pod whose deletion was requested."""
    return bool(pod.node) and not pod.terminal and not pod.deleted


def _batch_excess(pod: ApiPod) -> str:
    """The batch resources in the annotation that exceed the pod's; "" also if it can't be read."""
    if EXTENDED_RESOURCE_SPEC not in pod.annotations:
        return ""
    try:
        named = batch_resources(pod.annotations)
    except AnnotationError:
        return ""
    containers = (*pod.containers, *pod.init_containers)
    return batch_excess(named, {each.name: (each.requests, each.limits) for each in containers})


def _named(pod: ApiPod) -> tuple[str, ...]:
    return tuple(each.name for each in (*pod.containers, *pod.init_containers))


def _with(pod: Pod, metadata: PodMetadata) -> Pod:
    labels = _without(LABELS, pod.labels) | metadata.labels
    annotations = _without(ANNOTATIONS, pod.annotations) | metadata.annotations
    found = labels, annotations, metadata.unequal, metadata.batch_excess
    if found == (pod.labels, pod.annotations, pod.unequal, pod.batch_excess):
        return pod
    return msgspec.structs.replace(
        pod,
        labels=labels,
        annotations=annotations,
        unequal=metadata.unequal,
        batch_excess=metadata.batch_excess,
    )


def _without(keys: Container[str], texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if key not in keys}
