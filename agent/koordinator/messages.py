"""Converts Koordinator's hook messages to the values that hooks read, and the changes of hooks to
its responses.

koord-runtime-proxy merges a response into the request (pkg/runtimeproxy/resexecutor/cri/utils.go,
updateResource and transferToCRIContainerEnvs): if the response has any resources, it overwrites
cpuset, memory nodes and OOM score with those of the response; if it has an environment, it replaces
the whole environment. So a response with resources, or with an environment, repeats the request's
values that stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.hooks import carriers
from agent.hooks.carriers import Carried
from agent.hooks.requests import (
    Changes,
    ContainerName,
    CreateContainer,
    DeviceFields,
    UpdateContainer,
    announced_pod,
)
from agent.model.devices import visibility
from agent.model.linux_resources import UNLIMITED, LinuxResources, from_cri, to_cri
from agent.model.notifications import PodAnnounced
from agent.proto import koordinator_hooks_pb2 as pb

SETTABLE: Final = DeviceFields(frozenset({"environment"}))
"""The fields of a container's devices that a response can change."""


class ContainerRef(msgspec.Struct, frozen=True):
    """An existing container, with the pod and name that its creation had."""

    pod_uid: str
    name: str
    container_id: str


def sandbox(request: pb.PodSandboxHookRequest) -> PodAnnounced:
    """The pod with the fields that decisions read."""
    return _pod(request.pod_meta, request.labels, request.annotations, request.cgroup_parent)


def create(request: pb.ContainerResourceHookRequest) -> CreateContainer:
    """What decisions read of a request to create a container. Raises WireError."""
    return CreateContainer(
        _pod_of(request), request.container_meta.name, _requested(request.container_resources)
    )


def carried(request: pb.ContainerResourceHookRequest) -> Carried:
    """The devices that the environment of a request to create a container names: the protocol has
    no other part with devices. If the environment refers to mounts, one mount without a known
    device stands for them."""
    value = request.container_envs.get(visibility.VISIBLE_DEVICES)
    return Carried(
        environment=() if value is None else (value,),
        preload=request.container_envs.get(carriers.PRELOAD, ""),
        mounts=(carriers.mount_path("unseen"),) if value == visibility.MOUNT_ROOT else (),
        of_pod=visibility.of_pod(request.pod_annotations),
    )


def update(request: pb.ContainerResourceHookRequest) -> UpdateContainer:
    """What decisions read of a request to update a container. koord-runtime-proxy merges the
    caller's values into those that the container got before, also from hooks. It does not know the
    earlier values of a container that is older than itself. Raises WireError."""
    pod, container = request.pod_meta, request.container_meta
    return UpdateContainer(
        container.id,
        _requested(request.container_resources),
        ContainerName(pod.namespace, pod.name, pod.uid, container.name),
    )


def container_ref(request: pb.ContainerResourceHookRequest) -> ContainerRef:
    """The container that starts or stops."""
    return ContainerRef(
        _pod_of(request).uid, request.container_meta.name, request.container_meta.id
    )


def response(
    request: pb.ContainerResourceHookRequest, changes: Changes
) -> pb.ContainerResourceHookResponse:
    """The response with these changes. It leaves out what the protocol can't express: mounts,
    devices and the removal of a memory limit."""
    answer = pb.ContainerResourceHookResponse()
    resources = _resources(changes.resources)
    if resources.ByteSize():
        present = request.container_resources
        resources.cpuset_cpus = resources.cpuset_cpus or present.cpuset_cpus
        resources.cpuset_mems = resources.cpuset_mems or present.cpuset_mems
        resources.oom_score_adj = present.oom_score_adj
        answer.container_resources.CopyFrom(resources)
    if changes.environment:
        answer.container_envs.update({**request.container_envs, **dict(changes.environment)})
    return answer


def _resources(changed: LinuxResources) -> pb.LinuxContainerResources:
    """The message is that of the CRI."""
    if changed.memory_limit_bytes == UNLIMITED:
        changed = changed.without("memory_limit_bytes")
    return pb.LinuxContainerResources.FromString(to_cri(changed))


def _pod_of(request: pb.ContainerResourceHookRequest) -> PodAnnounced:
    return _pod(
        request.pod_meta, request.pod_labels, request.pod_annotations, request.pod_cgroup_parent
    )


def _pod(
    meta: pb.PodSandboxMetadata,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    cgroup_parent: str,
) -> PodAnnounced:
    return announced_pod(meta.uid, meta.namespace, meta.name, labels, annotations, cgroup_parent)


def _requested(resources: pb.LinuxContainerResources) -> LinuxResources:
    return from_cri(resources.SerializeToString())
