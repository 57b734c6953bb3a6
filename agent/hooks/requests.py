"""The part of CRI requests that the hooks read, with the CRI's field numbers (Kubernetes:
staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.hooks import wire
from agent.model.notifications import PodAnnounced, RequestedResources
from agent.model.pods import Pod, pod_metadata, pod_uid
from agent.model.qos import kube_class
from agent.model.wanted import PERIOD_MICROSECONDS

# PodSandboxConfig
_METADATA, _LABELS, _ANNOTATIONS, _LINUX = 1, 6, 7, 8
# CreateContainerRequest: config, sandbox_config; config.linux.resources
CONFIG, _SANDBOX_CONFIG = 2, 3
CREATE_RESOURCES = (CONFIG, 15, 1)
SECURITY_CONTEXT, PRIVILEGED = (CONFIG, 15, 2), 2
# of config
ENVIRONMENT, MOUNTS, NODES, ANNOTATIONS, CDI_DEVICES = 6, 7, 8, 10, 17
# Device: container_path, host_path, permissions
NODE_PATH, NODE_HOST_PATH, NODE_PERMISSIONS = 1, 2, 3
# Mount
CONTAINER_PATH, HOST_PATH, READ_ONLY = 1, 2, 3
# UpdateContainerResourcesRequest: linux
UPDATE_RESOURCES = (2,)
# LinuxContainerResources
CPU_PERIOD, CPU_QUOTA, CPU_SHARES, MEMORY_LIMIT, CPUSET, MEMS = 1, 2, 3, 4, 6, 7


class CreateContainer(msgspec.Struct, frozen=True):
    """A container that is to be made."""

    pod: PodAnnounced
    container_name: str
    asked: RequestedResources = RequestedResources()


class UpdateContainer(msgspec.Struct, frozen=True):
    """A container that exists and is to change."""

    container_id: str
    asked: RequestedResources = RequestedResources()


def run_pod_sandbox(message: bytes) -> PodAnnounced:
    """Raises WireError."""
    return _pod(wire.merged(message, 1))


def create_container(message: bytes) -> CreateContainer:
    """Raises WireError."""
    config = wire.merged(message, CONFIG)
    resources = wire.merged(message, *CREATE_RESOURCES)
    return CreateContainer(
        _pod(wire.merged(message, _SANDBOX_CONFIG)),
        wire.text(wire.merged(config, 1), 1),
        _asked(resources),
    )


def mounted(message: bytes) -> frozenset[str]:
    """The paths in the container that a request to create it mounts. Raises WireError."""
    return frozenset(wire.text(each, CONTAINER_PATH) for each in _entries(message, MOUNTS))


def update_container(message: bytes) -> UpdateContainer:
    """Raises WireError."""
    resources = wire.merged(message, *UPDATE_RESOURCES)
    return UpdateContainer(wire.text(message, 1), _asked(resources))


def removed_id(message: bytes) -> str:
    """The container of a request to remove one. Raises WireError."""
    return wire.text(message, 1)


def created_id(reply: bytes) -> str:
    """The id in a reply of RunPodSandbox or CreateContainer. Raises WireError."""
    return wire.text(reply, 1)


def announced_pod(
    uid: str,
    namespace: str,
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    cgroup_parent: str,
) -> PodAnnounced:
    """With the labels and annotations that decisions read."""
    read = pod_metadata(labels, annotations)
    return PodAnnounced(
        uid=pod_uid(uid, namespace, name),
        namespace=namespace,
        name=name,
        labels=read.labels,
        annotations=read.annotations,
        cgroup_parent=cgroup_parent,
    )


def announced(pod: PodAnnounced, created_at: int) -> Pod:
    """The pod for decisions, before the runtime has it."""
    return Pod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        labels=pod.labels,
        annotations=pod.annotations,
        kube_class=kube_class(pod.cgroup_parent),
        created_at=created_at,
    )


def _entries(message: bytes, wanted: int) -> list[bytes]:
    return [
        payload
        for field, kind, payload in wire.fields(wire.merged(message, CONFIG))
        if (field, kind) == (wanted, wire.BYTES)
    ]


def _asked(resources: bytes) -> RequestedResources:
    return RequestedResources(
        wire.text(resources, CPUSET),
        wire.text(resources, MEMS),
        wire.number(resources, CPU_SHARES),
        scaled_quota(wire.number(resources, CPU_QUOTA), wire.number(resources, CPU_PERIOD)),
        wire.number(resources, MEMORY_LIMIT),
    )


def scaled_quota(quota: int, period: int) -> int:
    """The quota for a period of 100,000 microseconds, the default period."""
    return quota * PERIOD_MICROSECONDS // period if quota > 0 and period > 0 else quota


def _pod(sandbox_config: bytes) -> PodAnnounced:
    metadata = wire.merged(sandbox_config, _METADATA)
    name, uid, namespace = (wire.text(metadata, number) for number in (1, 2, 3))
    return announced_pod(
        uid,
        namespace,
        name,
        wire.string_map(sandbox_config, _LABELS),
        wire.string_map(sandbox_config, _ANNOTATIONS),
        wire.text(wire.merged(sandbox_config, _LINUX), 1),
    )
