"""The pods on the node, from two sources: the runtime lists the pods that exist, and the API server
has their desired state.

A pod's labels and annotations can change in the API after its sandbox was created, so those of the
API count. Those of static pods come from the kubelet; their mirror pod in the API only shows them.
A mirror pod names the uid of another pod, and anybody who may create pods can write one. One that
the Node controls is the kubelet's (Kubernetes: plugin/pkg/admission/noderestriction/admission.go,
admitPodCreate, and deploy/policies/mirror-pods.yaml).
A pod that ended or was deleted in the API keeps its resources while the runtime lists it, by what
was known of it before; a pod that was assigned to this node counts before the runtime has it. Only
the uid identifies a pod: two pods with one name are two pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping

import msgspec

from agent.model.apiobjects import ApiNode, ApiPod, unequal_cpu
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC, AnnotationError
from agent.model.pod.batch import batch_excess, batch_resources
from agent.model.pod.pods import ANNOTATIONS, LABELS, Pod, PodMetadata, pod_metadata


def vouched(pods: Mapping[str, ApiPod], node: ApiNode | None) -> dict[str, ApiPod]:
    """The pods of a node without the mirror pods that its kubelet did not write, and without those
    whose uid another pod has too. `node` None: its uid is unknown, and its name counts."""
    found = {uid: pod for uid, pod in pods.items() if not pod.mirror or _by_kubelet(pod, node)}
    answering = Counter(pod.runtime_uid for pod in found.values())
    return {
        uid: pod for uid, pod in found.items() if not pod.mirror or answering[pod.runtime_uid] == 1
    }


def _by_kubelet(mirror: ApiPod, node: ApiNode | None) -> bool:
    known = node.uid if node is not None else ""
    return mirror.controlling_node in ({known} if known else {mirror.controlling_node} - {""})


def in_api(pods: Iterable[Pod], api_pods: Iterable[ApiPod]) -> dict[str, ApiPod]:
    """By the runtime's uid, the API's objects of these pods that have not ended: a mirror pod has
    their name too."""
    names = {pod.uid: pod.title for pod in pods}
    return {
        each.runtime_uid: each
        for each in api_pods
        if not each.terminal and names.get(each.runtime_uid) == each.title
    }


def metadata_by_uid(pods: Iterable[ApiPod]) -> dict[str, PodMetadata]:
    """By the runtime's uid, the metadata that the API server has of pods that have not ended."""
    return {
        pod.runtime_uid: pod_metadata(
            pod.labels, pod.annotations, unequal_cpu(pod), _batch_excess(pod)
        )
        for pod in pods
        if not pod.mirror and not pod.terminal
    }


def present(
    api_pods: Iterable[ApiPod], running: Iterable[Pod], metadata: Mapping[str, PodMetadata]
) -> tuple[Pod, ...]:
    """Sorted by the runtime's uid. `metadata`: what counts, also of pods that the API no longer
    has."""
    pods = {
        pod.uid: _with(pod, metadata[pod.uid]) if pod.uid in metadata else pod for pod in running
    }
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


def admitted(pods: Iterable[Pod], there: Container[str], *, static: bool) -> tuple[Pod, ...]:
    """The pods that can be decided about. `there`: the uids of pods that the runtime has or is
    about to get. A kubelet with the static policy assigns CPUs to a Guaranteed pod when it admits
    it, before the sandbox is created. Until then these CPUs are unknown, and the claim of such a
    pod does not count."""
    return tuple(
        pod for pod in pods if not static or pod.uid in there or pod.kube_class != "guaranteed"
    )


def coming(pod: ApiPod) -> bool:
    """Whether a pod that the runtime does not have will still be started on this node. A kubelet
    does not start a pod whose deletion was requested."""
    return bool(pod.node) and not pod.terminal and not pod.deleted


def _batch_excess(pod: ApiPod) -> str:
    """ "" also for an annotation that can't be read."""
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
