"""Small real pods, asked for as a kubelet would ask."""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import dataclass, field

from agent.cri.client import Cri
from agent.model.annotations import RESOURCE_STATUS
from agent.model.qos import QOS_LABEL
from agent.proto import cri_pb2 as pb
from agent.rpc.grpc import RpcError
from demo import image


@dataclass
class PodSpec:
    """One pod of one container. `cpuset` becomes its resource-status.

    `slices`: its cgroups are named as a kubelet with the systemd driver names them.
    """

    name: str
    qos: str = ""
    cpuset: str = ""
    kube_class: str = "burstable"
    namespace: str = "default"
    cgroup_root: str = "/topolet"
    slices: bool = False
    annotations: dict[str, str] = field(default_factory=dict)
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    def cgroup_parent(self) -> str:
        """The pod's group, whose place tells its Kubernetes class."""
        words = ["kubepods", self.kube_class, f"pod{self.uid}"]
        if self.kube_class == "guaranteed":
            del words[1]
        if self.slices:
            words[-1] = words[-1].replace("-", "_")
            words = [f"{'-'.join(words[: end + 1])}.slice" for end in range(len(words))]
        return "/".join([self.cgroup_root, *words])

    def config(self) -> pb.PodSandboxConfig:
        """The sandbox's configuration, on the host's network."""
        annotations = dict(self.annotations)
        if self.cpuset:
            annotations[RESOURCE_STATUS] = json.dumps({"cpuset": self.cpuset})
        return pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=self.name, uid=self.uid, namespace=self.namespace),
            labels={
                "io.kubernetes.pod.name": self.name,
                "io.kubernetes.pod.namespace": self.namespace,
                "io.kubernetes.pod.uid": self.uid,
                **({QOS_LABEL: self.qos} if self.qos else {}),
            },
            annotations=annotations,
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=self.cgroup_parent(),
                security_context=pb.LinuxSandboxSecurityContext(
                    namespace_options=pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER)
                ),
            ),
        )


def run_sandbox(cri: Cri, spec: PodSpec) -> str:
    """The sandbox's id."""
    request = pb.RunPodSandboxRequest(config=spec.config())
    return cri.call("RunPodSandbox", request, pb.RunPodSandboxResponse).pod_sandbox_id


def create_request(spec: PodSpec, sandbox_id: str, name: str = "main") -> pb.CreateContainerRequest:
    """What a kubelet sends for a container that asks for no cpuset."""
    return pb.CreateContainerRequest(
        pod_sandbox_id=sandbox_id,
        config=pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name),
            image=pb.ImageSpec(image=image.NAME),
            command=image.SLEEP,
            labels={"io.kubernetes.container.name": name},
            linux=pb.LinuxContainerConfig(
                resources=pb.LinuxContainerResources(cpu_shares=256),
                security_context=pb.LinuxContainerSecurityContext(
                    namespace_options=pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER)
                ),
            ),
        ),
        sandbox_config=spec.config(),
    )


def large_environment(config: pb.ContainerConfig, size_bytes: int) -> None:
    """Adds variables of so many bytes together, as several ConfigMaps in `envFrom` do. The kernel
    takes at most 128 KiB of one (MAX_ARG_STRLEN)."""
    piece = b"x" * 15_000
    for number in range(-(-size_bytes // len(piece))):
        config.envs.add(key=f"LARGE_{number}", value=piece)


def create_container(cri: Cri, request: pb.CreateContainerRequest) -> str:
    """The container's id."""
    return cri.call("CreateContainer", request, pb.CreateContainerResponse).container_id


def start_container(cri: Cri, container_id: str) -> None:
    """Starts a created container."""
    request = pb.StartContainerRequest(container_id=container_id)
    cri.call("StartContainer", request, pb.StartContainerResponse)


def run_pod(cri: Cri, spec: PodSpec) -> tuple[str, str]:
    """Sandbox id and container id of a pod that runs."""
    sandbox_id = run_sandbox(cri, spec)
    container_id = create_container(cri, create_request(spec, sandbox_id))
    start_container(cri, container_id)
    return sandbox_id, container_id


def remove_pod(cri: Cri, sandbox_id: str) -> None:
    """Ends and removes a pod; a pod that is gone already is no error."""
    stop = pb.StopPodSandboxRequest(pod_sandbox_id=sandbox_id)
    remove = pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id)
    with contextlib.suppress(RpcError):
        cri.call("StopPodSandbox", stop, pb.StopPodSandboxResponse)
    with contextlib.suppress(RpcError):
        cri.call("RemovePodSandbox", remove, pb.RemovePodSandboxResponse)
