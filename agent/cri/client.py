"""The CRI calls that Topolet makes itself, as values (runtime.v1, ../../protos/cri.proto).

No field of the CRI has a container's cgroup, or how it got devices: runtimes put both as JSON under
`info` of their verbose status. containerd has the request (`config`) and the OCI spec there, CRI-O
the spec and whether the container is privileged. The spec takes precedence over the request,
because plugins in the runtime change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from sys import getsizeof
from typing import Final, TypeVar

import msgspec

from agent.allocate.device_holders.reported_devices import Carriers
from agent.allocate.shares import unequal_resources
from agent.model import bounds, wire
from agent.model.devices import visibility
from agent.model.linux_resources import NO_RESOURCES, CpuQuota, LinuxResources, hugepages, to_cri
from agent.model.pod.pods import ContainerState, pod_metadata, pod_uid
from agent.model.verdict import Code
from agent.proto import DecodeError, Message
from agent.proto import cri_pb2 as pb
from agent.rpc.channel import Channel
from agent.rpc.grpc import RpcError

Reply = TypeVar("Reply", bound=Message)
Listed = TypeVar("Listed", bound=msgspec.Struct)
MAX_REPLY_BYTES: Final = 16 << 20
"""The limit of a kubelet too (maxMsgSize in cri-client/pkg/remote_runtime.go)."""
_ITEMS: Final = 1  # of ListPodSandboxResponse and ListContainersResponse
_INFO: Final = 2  # of PodSandboxStatusResponse and ContainerStatusResponse
_KEY, _VALUE = 1, 2  # of an entry of a map
MAX_ITEMS: Final = 1 << 14
"""The most entries of a list: a cluster keeps 12,500 pods that have ended, maybe all on one node
(kube-controller-manager: --terminated-pod-gc-threshold)."""
_MAX_ITEM_BYTES: Final = 2 << 20  # all metadata that the API server accepts of a pod
MAX_NAMES_BYTES: Final = 8 << 20
"""The most bytes that all ids and names of a list may take in memory, where one wide character
makes its whole text four times as large. Those of a container take 300 bytes, of a sandbox 450."""
_MAX_INFO_ENTRIES: Final = 64
MAX_INFO_BYTES: Final = 4 << 20
"""Twice the largest environment of a process with a stack of 8 MiB (execve(2)): both the request
and the spec contain it."""
_MAX_INFO_VALUES: Final = 1 << 17  # each may take a hundred bytes
MAX_PATH_BYTES: Final = 4 << 10
_STRINGS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_STATES = {
    pb.CONTAINER_CREATED: ContainerState.CREATED,
    pb.CONTAINER_RUNNING: ContainerState.RUNNING,
    pb.CONTAINER_EXITED: ContainerState.ENDED,
}


class Sandbox(msgspec.Struct, frozen=True):
    """A pod's sandbox; `created_at` in nanoseconds since 1970. `labels` and `annotations` hold what
    `pods.pod_metadata` keeps. `handler`: of its RuntimeClass, empty for the runtime's default."""

    id: str
    uid: str
    namespace: str
    name: str
    ready: bool
    created_at: int
    labels: dict[str, str]
    annotations: dict[str, str]
    handler: str = ""


class RuntimeContainer(msgspec.Struct, frozen=True):
    """A container that the runtime has; `created_at` in nanoseconds since 1970."""

    id: str
    sandbox_id: str
    name: str
    state: ContainerState
    created_at: int = 0


class VerboseStatus(msgspec.Struct, frozen=True):
    """What the agent reads in the verbose status of a container or sandbox: its process, its
    cgroup, and the values that the runtime stores; "" or 0 for absent ones.

    `cgroups_path`: of the OCI spec (`/parent/ID` or `slice:prefix:ID`); `resources`: of the spec,
    with which the container starts. `carriers`: what shows its devices, None unless requested.
    `unequal`: of a sandbox, where the pod's CPU limit differs from its request."""

    pid: int = 0
    cgroup_parent: str = ""
    cgroups_path: str = ""
    resources: LinuxResources = NO_RESOURCES
    carriers: Carriers | None = None
    unequal: str = ""


class Cri:
    """A runtime's CRI socket. Every method raises RpcError."""

    def __init__(self, socket_path: str, timeout_seconds: float = 10.0) -> None:
        self._channel = Channel(socket_path, MAX_REPLY_BYTES)
        self._timeout_seconds = timeout_seconds

    def version(self) -> str:
        """The runtime's name and version."""
        reply = self.call("Version", pb.VersionRequest(), pb.VersionResponse)
        return f"{reply.runtime_name} {reply.runtime_version}"

    def cdi_dirs(self) -> tuple[str, ...] | None:
        """The folders of the runtime's CDI files; none if it reads none, None if it does not tell
        (CRI-O)."""
        request = pb.StatusRequest(verbose=True)
        return cdi_dirs_of(self._verbose("Status", request, pb.StatusResponse, "config"))

    def sandboxes(self) -> list[Sandbox]:
        """All sandboxes, ready or not, with the labels and annotations that `pod_metadata`
        keeps."""
        return listed_sandboxes(self._reply("ListPodSandbox", pb.ListPodSandboxRequest()))

    def containers(self) -> list[RuntimeContainer]:
        """All containers with a known state, also ended ones until they are removed."""
        raw = self._reply("ListContainers", pb.ListContainersRequest())
        try:
            listed = map(pb.Container.FromString, _items(raw))
            return _within_room(_container(each) for each in listed if each.state in _STATES)
        except (DecodeError, wire.WireError) as error:
            raise _unreadable("ListContainers", pb.ListContainersResponse, error) from None

    def sandbox_status(self, sandbox_id: str) -> VerboseStatus:
        """Reads the runtime's verbose status; fields that it does not have stay empty."""
        request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        return status_of(self._verbose("PodSandboxStatus", request, pb.PodSandboxStatusResponse))

    def container_status(self, container_id: str, *, carriers: bool = False) -> VerboseStatus:
        """As `sandbox_status`. `carriers`: whether to read what shows the container's devices."""
        request = pb.ContainerStatusRequest(container_id=container_id, verbose=True)
        info = self._verbose("ContainerStatus", request, pb.ContainerStatusResponse)
        found = device_carriers(info) if carriers else None
        return msgspec.structs.replace(status_of(info), carriers=found)

    def update(self, container_id: str, resources: LinuxResources) -> None:
        """Changes the values that a container has, or will start with. Raises ValueError for an
        empty cpuset."""
        if resources.cpuset == "":
            raise ValueError(f"container {container_id}: an empty cpuset means no change")
        linux = pb.LinuxContainerResources.FromString(to_cri(resources))
        request = pb.UpdateContainerResourcesRequest(container_id=container_id, linux=linux)
        self.call("UpdateContainerResources", request, pb.UpdateContainerResourcesResponse)

    def call(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        """Any method of the RuntimeService."""
        raw = self._reply(method, request)
        try:
            return reply.FromString(raw)
        except DecodeError as error:
            raise _unreadable(method, reply, error) from None

    def close(self) -> None:
        """Closes the connection; a later call opens it again."""
        self._channel.close()

    def _verbose(
        self, method: str, request: Message, reply: type[Message], entry: str = "info"
    ) -> str:
        """The JSON of a verbose status, "" without one. Nothing else of the reply is decoded."""
        try:
            return _info_of(self._reply(method, request), entry)
        except wire.WireError as error:
            raise _unreadable(method, reply, error) from None

    def _reply(self, method: str, request: Message) -> bytes:
        path = f"/runtime.v1.RuntimeService/{method}"
        return self._channel.call(path, request.SerializeToString(), self._timeout_seconds)


def listed_sandboxes(raw: bytes) -> list[Sandbox]:
    """Of an encoded ListPodSandboxResponse. Raises RpcError."""
    try:
        return _within_room(_sandbox(pb.PodSandbox.FromString(each)) for each in _items(raw))
    except (DecodeError, wire.WireError) as error:
        raise _unreadable("ListPodSandbox", pb.ListPodSandboxResponse, error) from None


def _unreadable(method: str, reply: type[Message], error: Exception) -> RpcError:
    return RpcError(Code.INTERNAL, f"{method}: cannot read a {reply.__name__}: {error}")


def _items(raw: bytes) -> Iterator[bytes]:
    """The encoded items of a list, to be decoded one at a time: a decoded one may take a hundred
    times as much. Raises WireError."""
    for number, each in enumerate(wire.payloads(raw, _ITEMS)):
        if number >= MAX_ITEMS or len(each) > _MAX_ITEM_BYTES:
            raise wire.WireError(
                f"more than {MAX_ITEMS} items, or one of more than {_MAX_ITEM_BYTES} bytes"
            )
        yield each


def _info_of(raw: bytes, entry: str) -> str:
    """The JSON under this entry of `info` in a reply, "" without one. Raises WireError; RpcError
    for a status that exceeds the limits."""
    info = ""
    for number, (field, kind, payload) in enumerate(wire.fields(raw)):
        if number >= _MAX_INFO_ENTRIES:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"more than {_MAX_INFO_ENTRIES} fields")
        if (field, kind) != (_INFO, wire.BYTES):
            continue
        if len(payload) > MAX_INFO_BYTES:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"info has more than {MAX_INFO_BYTES} bytes")
        if wire.text(payload, _KEY) == entry:
            info = wire.text(payload, _VALUE)
    if info.count(",") > _MAX_INFO_VALUES < _STRINGS.sub("", info).count(","):
        raise RpcError(Code.RESOURCE_EXHAUSTED, f"info has more than {_MAX_INFO_VALUES} values")
    return info


def _within_room(listed: Iterator[Listed]) -> list[Listed]:
    """Raises WireError when ids and names take more than MAX_NAMES_BYTES."""
    kept, left = [], MAX_NAMES_BYTES
    for each in listed:
        left -= sum(getsizeof(one) for one in msgspec.structs.astuple(each) if isinstance(one, str))
        if left < 0:
            raise wire.WireError(f"ids and names take more than {MAX_NAMES_BYTES} bytes")
        kept.append(each)
    return kept


def _container(each: pb.Container) -> RuntimeContainer:
    name, state = each.metadata.name, _STATES[each.state]
    return RuntimeContainer(each.id, each.pod_sandbox_id, name, state, each.created_at)


def _sandbox(each: pb.PodSandbox) -> Sandbox:
    read = pod_metadata(each.labels, each.annotations)
    return Sandbox(
        id=each.id,
        uid=pod_uid(each.metadata.uid, each.metadata.namespace, each.metadata.name),
        namespace=each.metadata.namespace,
        name=each.metadata.name,
        ready=each.state == pb.SANDBOX_READY,
        created_at=each.created_at,
        labels=read.labels,
        annotations=read.annotations,
        handler=each.runtime_handler,
    )


class _SpecCpu(msgspec.Struct):
    cpus: str = ""
    mems: str = ""
    quota: int | None = None
    period: int | None = None
    shares: int | None = None


class _SpecMemory(msgspec.Struct):
    limit: int | None = None


class _SpecHugepages(msgspec.Struct, rename="camel"):
    page_size: str = ""
    limit: int = 0


class _SpecResources(msgspec.Struct, rename="camel"):
    """The OCI spec's `linux.resources`."""

    cpu: _SpecCpu | None = None
    memory: _SpecMemory | None = None
    hugepage_limits: list[_SpecHugepages] | None = None

    def values(self, requested: _ConfigResources) -> LinuxResources:
        # Without the hugetlb controller the spec has no limits of huge pages.
        limits = self.hugepage_limits or requested.hugepage_limits or ()
        cpu, memory = self.cpu or _SpecCpu(), self.memory or _SpecMemory()
        return LinuxResources(
            cpuset=cpu.cpus or None,
            mems=cpu.mems or None,
            shares=cpu.shares or None,
            quota=CpuQuota.of(cpu.quota or 0, cpu.period or 0),
            memory_limit_bytes=memory.limit or None,
            hugepages=hugepages((each.page_size, each.limit) for each in limits),
        )


class _SpecLinux(msgspec.Struct, rename="camel"):
    cgroups_path: str = ""
    resources: _SpecResources | None = None


class _Spec(msgspec.Struct):
    linux: _SpecLinux | None = None


class _ConfigHugepages(msgspec.Struct):
    page_size: str = ""
    limit: int = 0


class _ConfigResources(msgspec.Struct):
    """The request's `linux.resources`; in that of a sandbox, the sums of its containers."""

    cpu_shares: int = 0
    cpu_quota: int = 0
    cpu_period: int = 0
    hugepage_limits: list[_ConfigHugepages] | None = None


class _ConfigLinux(msgspec.Struct):
    cgroup_parent: str = ""
    resources: _ConfigResources | None = None


class _Config(msgspec.Struct):
    linux: _ConfigLinux | None = None


class _Info(msgspec.Struct, rename={"spec": "runtimeSpec"}):
    pid: int = 0
    config: _Config | None = None
    spec: _Spec | None = None


class _RuntimeConfig(msgspec.Struct):
    """containerd 1.6 knows no CDI files, 1.7 reads them only if it is configured so, and 2.4 always
    does."""

    containerd: msgspec.Raw = msgspec.Raw()
    enabled: bool = msgspec.field(default=True, name="enableCDI")
    dirs: tuple[str, ...] | None = msgspec.field(default=None, name="cdiSpecDirs")


_info_decoder = msgspec.json.Decoder(_Info)
_config_decoder = msgspec.json.Decoder(_RuntimeConfig)


def cdi_dirs_of(config: str) -> tuple[str, ...] | None:
    """`config`: the runtime's configuration as JSON. None if it is not containerd's, or can't be
    read."""
    try:
        of_runtime = bounds.decode(_config_decoder, config or "{}")
    except bounds.JsonError:
        return None
    if not bytes(of_runtime.containerd):
        return None
    return (of_runtime.dirs or ()) if of_runtime.enabled else ()


def status_of(info: str) -> VerboseStatus:
    """`info`: the JSON of a verbose reply. Empty if it can't be read, or if a path or CPU list in
    it is longer than MAX_PATH_BYTES: the agent keeps these texts for each container."""
    try:
        found = bounds.decode(_info_decoder, info or "{}")
    except bounds.JsonError:
        return VerboseStatus()
    spec = found.spec.linux if found.spec and found.spec.linux else _SpecLinux()
    config = found.config.linux if found.config and found.config.linux else _ConfigLinux()
    configured = config.resources or _ConfigResources()
    resources = (spec.resources or _SpecResources()).values(configured)
    texts = (config.cgroup_parent, spec.cgroups_path, resources.cpuset, resources.mems)
    if any(len(each or "") > MAX_PATH_BYTES for each in texts):
        return VerboseStatus()
    return VerboseStatus(
        found.pid,
        config.cgroup_parent,
        spec.cgroups_path,
        resources,
        unequal=unequal_resources(
            configured.cpu_shares, configured.cpu_quota, configured.cpu_period
        ),
    )


class _Variable(msgspec.Struct):
    key: str = ""
    value: str = ""


class _RequestedMount(msgspec.Struct):
    container_path: str = ""


class _RequestedDevice(msgspec.Struct):
    container_path: str = ""
    host_path: str = ""


class _CdiDevice(msgspec.Struct):
    name: str = ""


class _Security(msgspec.Struct):
    privileged: bool = False


class _RequestedLinux(msgspec.Struct):
    security_context: _Security | None = None


class _CarriedConfig(msgspec.Struct, rename={"cdi": "CDI_devices"}):
    envs: list[_Variable] | None = None
    mounts: list[_RequestedMount] | None = None
    devices: list[_RequestedDevice] | None = None
    cdi: list[_CdiDevice] | None = None
    annotations: dict[str, str] | None = None
    linux: _RequestedLinux | None = None


class _Process(msgspec.Struct):
    env: list[str] | None = None


class _Mount(msgspec.Struct):
    destination: str = ""


class _DeviceNode(msgspec.Struct):
    path: str = ""


class _CarriedLinux(msgspec.Struct):
    devices: list[_DeviceNode] | None = None


class _CarriedSpec(msgspec.Struct):
    process: _Process | None = None
    mounts: list[_Mount] | None = None
    annotations: dict[str, str] | None = None
    linux: _CarriedLinux | None = None


class _CarriedInfo(msgspec.Struct, rename={"spec": "runtimeSpec"}):
    privileged: bool = False
    config: _CarriedConfig | None = None
    spec: _CarriedSpec | None = None


_carried_decoder: Final = msgspec.json.Decoder(_CarriedInfo)


def device_carriers(info: str) -> Carriers:
    """What shows the devices of a container, by the text under `info`; nothing if that can't be
    read. The environment has the spec's variables after the request's, and the last one of a name
    counts: images and CDI add to the request."""
    try:
        found = bounds.decode(_carried_decoder, info or "{}")
    except bounds.JsonError:
        return Carriers()
    config = found.config or _CarriedConfig()
    spec = found.spec or _CarriedSpec()
    linux, process = spec.linux or _CarriedLinux(), spec.process or _Process()
    security = (config.linux or _RequestedLinux()).security_context or _Security()
    configured = config.devices or ()
    # When a device node has another path in the container, only the request has the host's path.
    moved = {each.container_path for each in configured if each.container_path != each.host_path}
    environment = [(each.key, each.value) for each in config.envs or ()]
    for each in process.env or ():
        key, _, value = each.partition("=")
        environment.append((key, value))
    if spec.mounts is None:
        mounts = [mount.container_path for mount in config.mounts or ()]
    else:
        mounts = [mount.destination for mount in spec.mounts]
    # The kubelet writes the request's annotations, and a runtime may add the pod's to the spec.
    # Annotations that the runtime itself interprets are not in the spec.
    requested, written = config.annotations or {}, spec.annotations or {}
    by_annotation = [
        name
        for key, value in requested.items()
        if visibility.is_cdi_annotation(key)
        for name in visibility.split(
            value
            if found.spec is None or key.startswith(visibility.CDI_OF_RUNTIME)
            else written.get(key, "")
        )
    ]
    nodes = [
        *(device.host_path for device in configured),
        *(node.path for node in linux.devices or () if node.path not in moved),
    ]
    return Carriers(
        tuple(environment),
        tuple(dict.fromkeys([*(device.name for device in config.cdi or ()), *by_annotation])),
        tuple(each for each in written.items() if each[0] not in requested),
        tuple(dict.fromkeys(mounts)),
        tuple(dict.fromkeys(nodes)),
        found.privileged or security.privileged,
    )
