"""The parsers of what other processes of a node send and write: containers and their requests, the
runtime, the kubelet, the kernel's files."""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import DecodeError, Message

from agent.allocate.device_holders import names as holder_names
from agent.allocate.device_holders import reported_devices
from agent.allocate.node_allocator.properties import AllocatorRules
from agent.cgroup import limits
from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.names import own_root
from agent.cli import remote
from agent.cri import client, events
from agent.discover import cpus, hardware, pci
from agent.discover import cpus as numa
from agent.discover import sysfs_devices as fpga
from agent.discover import sysfs_devices as network
from agent.discover.sysfs import DiscoveryError
from agent.dra import cdi
from agent.dra.service import DraService
from agent.guard.decisions import Decisions, SnapshotFormError, refusal
from agent.guard.frames import Frames
from agent.guard.request import ValidatedContainer
from agent.guard.wire import ProtobufError
from agent.hooks import carriers
from agent.hooks.requests import UNCHANGED, Changes
from agent.hooks.visibility import RefusedError, device_changes
from agent.host import kernel_events
from agent.host.processes import Process, UnreadableError, allowed_cpus, pids
from agent.http import requests
from agent.koordinator import server
from agent.koordinator import service as koordinator_messages
from agent.kube import documents, store
from agent.kube.documents import DocumentError
from agent.kube.errors import StoreError
from agent.kubelet import (
    configuration,
    cpu_manager_state,
    device_checkpoint,
    memory_manager_state,
    podresources,
)
from agent.kubelet.configuration import ConfigurationError
from agent.kubelet.podresources import FieldError
from agent.kubelet.statefile import StateFileError
from agent.model import audit, notice, notifications, snapshot, wire
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSetError
from agent.model.devices import device_files, visibility
from agent.model.devices.device_object import Device, DeviceTopology
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.model.devices.visibility import Mount
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup
from agent.model.linux_resources import NO_QUOTA, CpuQuota, LinuxResources
from agent.model.notifications import NotificationError
from agent.model.objects import ObjectError
from agent.model.pod.apiobjects import from_object
from agent.model.pod.pod_resources import PodResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import SnapshotError
from agent.model.verdict import Code, Refuse
from agent.node import cluster_view, contention, gpus, kubelet_process, past_load
from agent.nri import conflicts, link, messages, service
from agent.nri.service import PluginCall, PluginService, PluginStats
from agent.nri.ttrpc import PLUGIN, REQUEST, RESPONSE, RUNTIME, MuxError, Session, encode
from agent.nri.ttrpc import Message as TtrpcMessage
from agent.proto import (
    cri_pb2,
    dra_pb2,
    koordinator_hooks_pb2,
    nri_pb2,
    podresources_pb2,
    ttrpc_pb2,
)
from agent.proxy import gate as cri
from agent.rpc import frames, grpc, headers, unary
from agent.rpc.grpc import MessageError, RpcError
from agent.rpc.headers import HeaderError
from agent.rpc.held_calls import HeldCalls
from agent.scheduler.explain import saved
from agent.scheduler.leader import candidate
from agent.scheduler.state.records import AgentSelector
from agent.usage import offered, strategies
from agent.usage.predictor import Predictor
from agent.usage.threads import Threads
from tests.kubelet.state_files import BLOCK, ENTRY, FILLED
from tests.parsers import mutations
from tests.parsers.target import Target, json_target, message_target, outcome_of

_VECTORS: Final = Path(__file__).parents[1] / "data/vectors/kubelet-state-files.jsonl"
_MAX_OF_EACH: Final = 6


def _pod_config(message: Any) -> Any:
    metadata = message.metadata
    metadata.name, metadata.namespace, metadata.uid = "p", "ns", "u"
    message.labels["koordinator.sh/qosClass"] = "LSR"
    message.annotations["scheduling.koordinator.sh/resource-status"] = '{"cpuset": "0-3"}'
    return message


def _create_request() -> bytes:
    message = cri_pb2.CreateContainerRequest(pod_sandbox_id="s")
    _pod_config(message.sandbox_config).linux.cgroup_parent = "/kubepods/burstable/podu"
    config = message.config
    config.metadata.name = "c"
    resources = config.linux.resources
    resources.cpu_period, resources.cpu_quota, resources.cpu_shares = 100_000, 50_000, 512
    resources.memory_limit_in_bytes = 1 << 30
    resources.cpuset_cpus, resources.cpuset_mems = "0-3", "0"
    config.envs.add(key="NVIDIA_VISIBLE_DEVICES", value=b"GPU-1,1:0,all")
    config.envs.add(key="LD_PRELOAD", value=b"/lib/theirs.so")
    config.mounts.add(container_path=f"{visibility.MOUNT_ROOT}/GPU-3", host_path="/dev/null")
    config.mounts.add(container_path="/k", host_path="/var/lib/kubelet/device-plugins")
    config.devices.add(host_path="/dev/nvidia1", container_path="/dev/n", permissions="rw")
    config.annotations["cdi.k8s.io/plugin_1"] = "nvidia.com/gpu=GPU-4,other.example/nic=0"
    config.CDI_devices.add(name="nvidia.com/gpu=GPU-5")
    config.CDI_devices.add(name="k8s.gpu.nvidia.com/claim=uid-gpu-0")
    config.linux.security_context.privileged = True
    page = wire.patch((1,), "2MB") + wire.patch((2,), 1 << 21)
    return bytes(message.SerializeToString()) + wire.patch((*cri.CREATE_RESOURCES, 8), page)


_CHANGES: Final = Changes(
    LinuxResources("1", shares=2, quota=NO_QUOTA),
    environment=(("NVIDIA_VISIBLE_DEVICES", "void"),),
    removed_cdi_devices=("nvidia.com/gpu=GPU-5",),
    removed_mounts=(f"{visibility.MOUNT_ROOT}/GPU-3",),
    annotations=(("cdi.k8s.io/plugin_1", None),),
    mounts=(Mount("/state/cpus", "/run/topolet"),),
)
_CARD: Final = visibility.VisibleGpu("GPU-1", "1", (visibility.DeviceNode("/dev/nvidia1", 195, 1),))
_NODE: Final = visibility.NodeVisibility(
    (
        visibility.NodeDevice("GPU-2", "0", nodes=("/dev/nvidia0",), holders=("other",)),
        visibility.NodeDevice("GPU-1", "1", nodes=("/dev/nvidia1",), holders=("u",)),
    ),
    unrequested_gpus="deny",
)


def _shown(carried: carriers.Carried) -> object:
    """What the hook does about the devices of a request."""
    found: list[object] = [list(carried.names()), list(carried.claimed())]
    for shown in (visibility.Visibility((_CARD,)), visibility.Visibility(None)):
        try:
            found.append(device_changes("u", carried, shown, _NODE))
        except RefusedError as error:
            found.append(str(error))
    return found


def _created(message: bytes) -> object:
    return (
        cri.create_container(message),
        cri.mounted(message),
        _shown(cri.carried(message)),
        cri.create_request_with(message, _CHANGES),
    )


def _cri_requests() -> Iterator[Target]:
    sandbox = cri_pb2.RunPodSandboxRequest(runtime_handler="runc")
    _pod_config(sandbox.config).linux.cgroup_parent = "/kubepods/burstable/podu"
    update = cri_pb2.UpdateContainerResourcesRequest(container_id="c")
    update.linux.cpuset_cpus, update.linux.cpu_shares = "0-3", 512
    yield message_target(
        "CreateContainerRequest", _created, _create_request(), raises={wire.WireError: ""}
    )
    yield message_target(
        "other requests of CRI",
        lambda message: (
            outcome_of(lambda: cri.run_pod_sandbox(message), wire.WireError),
            outcome_of(lambda: cri.update_container(message), wire.WireError),
            outcome_of(lambda: cri.removed_id(message), wire.WireError),
            outcome_of(lambda: cri.created_id(message), wire.WireError),
            cri.update_request_with(message, _CHANGES),
        ),
        sandbox,
        update,
    )
    yield Target(
        "names of GPUs",
        lambda text: _shown(
            carriers.Carried(
                environment=(text,),
                mounts=(f"{visibility.MOUNT_ROOT}/{text}",),
                annotations=(("cdi.k8s.io/a", text),),
                cdi_devices=(text,),
            )
        ),
        mutations.of_text,
        ("GPU-1,GPU-2", "0,1:0", "nvidia.com/gpu=GPU-1", "all", "k8s.gpu.nvidia.com/claim=u-gpu-0"),
    )
    yield Target(
        "mount paths",
        lambda text: (
            carriers.mounted_name(text),
            carriers.serves(carriers.serving((text,)), _NODE.kubelet_dir),
            carriers.is_card_node(text),
            carriers.is_instance_node(text),
            carriers.is_node_of("rdma", text),
            visibility.cleaned(text),
        ),
        mutations.of_name,
        (
            f"{visibility.MOUNT_ROOT}/cdi/nvidia.com/gpu/GPU-1",
            "/var/lib/kubelet/pod-resources/a",
            "/dev/nvidia-caps/nvidia-cap12",
            "/dev/infiniband/uverbs0",
        ),
    )


_INFO: Final = json.dumps(
    {
        "pid": 5,
        "privileged": False,
        "config": {
            "linux": {
                "cgroup_parent": "/kubepods/podu",
                "resources": {"cpu_shares": 2, "cpu_quota": 5000, "cpu_period": 100000},
                "security_context": {"privileged": True},
            },
            "envs": [{"key": "A", "value": "b"}],
            "mounts": [{"container_path": "/a"}],
            "devices": [{"container_path": "/dev/a", "host_path": "/dev/b"}],
            "CDI_devices": [{"name": "nvidia.com/gpu=0"}],
            "annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=1"},
        },
        "runtimeSpec": {
            "process": {"env": ["NVIDIA_VISIBLE_DEVICES=GPU-1", "DRA_CPUSET_u=1-2"]},
            "mounts": [{"destination": f"{visibility.MOUNT_ROOT}/GPU-1"}],
            "annotations": {"a": "b"},
            "linux": {
                "cgroupsPath": "kubepods.slice:cri-containerd:a",
                "devices": [{"path": "/dev/nvidia0"}],
                "resources": {
                    "cpu": {"cpus": "0-3", "mems": "0", "quota": -1, "shares": 2},
                    "memory": {"limit": 1 << 30},
                    "hugepageLimits": [{"pageSize": "2MB", "limit": 1 << 21}],
                },
            },
        },
    }
)
_HOLDERS: Final = holder_names.keys(
    [Device("gpu", "GPU-1", 0, {}, topology=DeviceTopology(bus="0000:3b:00.0"))]
)


def _info(text: str) -> object:
    carried = client.device_carriers(text)
    found = reported_devices.of_carriers("u", "c", carried)
    return (
        client.status_of(text),
        carried,
        [holder_names.meaning(each, _HOLDERS) for each in found],
    )


def _runtime() -> Iterator[Target]:
    yield Target("verbose status of a container", _info, mutations.of_json, (_INFO,))
    config = json.dumps({"containerd": {}, "enableCDI": True, "cdiSpecDirs": ["/etc/cdi"]})
    yield Target("verbose status of a runtime", client.cdi_dirs_of, mutations.of_json, (config,))
    for version in (events.serves_all_callers, _of_name(service.accepts_updates)):
        yield Target(
            f"version of the runtime ({version.__name__})",
            functools.partial(version, "containerd"),
            mutations.of_text,
            ("2.4.2", "v0.12.1"),
        )
    listed = cri_pb2.ListPodSandboxResponse()
    _pod_config(listed.items.add(id="s", created_at=5, runtime_handler="nvidia"))
    yield message_target(
        "ListPodSandboxResponse",
        client.listed_sandboxes,
        listed,
        raises={RpcError: "ListPodSandbox: "},
    )
    yield Target(
        "a runtime's HTTP/2",
        _unary,
        mutations.of_bytes,
        (_answer(), _answer(headers_first=False)),
        raises={unary.ProtocolError: ""},
    )
    yield Target(
        "the head of an HTTP request",
        lambda raw: requests.parse_head(raw + b"\r\n\r\n"),
        mutations.of_bytes,
        (
            b"POST /filter?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nConnection: close",
            b"GET http://a/%62 HTTP/1.0\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue",
            b"GET / HTTP/1.1\r\nAccept:" + b" " * 2_000 + b"a" + b"\t" * 2_000,
        ),
        raises={requests.BadRequestError: ""},
    )
    yield Target(
        "header blocks",
        lambda block: (
            outcome_of(lambda: headers.Decoder().decode(block), HeaderError),
            outcome_of(lambda: headers.PathReader().read(block), HeaderError),
        ),
        mutations.of_bytes,
        (
            headers.encode([(b":path", b"/a"), (b"grpc-status", b"0")]),
            bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff"),
        ),
    )
    yield Target(
        "gzip",
        lambda packed: (grpc.gunzip(packed, 1 << 16), grpc.unpacked_bytes(packed)),
        mutations.of_bytes,
        (gzip.compress(b"a" * 5_000, mtime=0), gzip.compress(bytes(range(256)), mtime=0)),
        raises={MessageError: ""},
    )


def _of_name(of_version: Callable[[str], object]) -> Callable[[str, str], object]:
    @functools.wraps(of_version)
    def read(_: str, version: str) -> object:
        return of_version(version)

    return read


def _answer(*, headers_first: bool = True) -> bytes:
    """The frames of a server that answers one call."""
    trailers = [(b"grpc-status", b"5"), (b"grpc-message", b"not%20found")]
    begun = headers.encode([(b":status", b"200"), *([] if headers_first else trailers)])
    parts = [
        frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20, frames.MAX_FRAME_SIZE: 1 << 14}),
        frames.SETTINGS_ACK,
        frames.window_update(0, 1 << 20),
        frames.frame(frames.HEADERS, frames.END_HEADERS, 1, begun),
        frames.frame(frames.DATA, 0, 1, grpc.encode_message(b"reply")),
        frames.frame(frames.PING, 0, 0, b"12345678"),
        frames.frame(
            frames.HEADERS,
            frames.END_HEADERS | frames.END_STREAM,
            1,
            headers.encode(trailers if headers_first else [(b"grpc-status", b"0")]),
        ),
        frames.goaway(1, 0),
    ]
    return b"".join(parts)


def _unary(data: bytes) -> object:
    """A call, and one with a streamed answer, whatever the server sends."""
    outcomes = []
    for streamed in (False, True):
        connection = unary.UnaryConnection(1 << 16)
        connection.start("/service/method", b"request", None if streamed else 1.0)
        middle = len(data) // 2
        for part in (data[:middle], data[middle:]):
            connection.receive(part)
            if streamed:
                connection.take_messages()
        assert len(connection.outgoing()) < 1 << 20
        outcome = connection.outcome
        outcomes.append(outcome.message if isinstance(outcome, RpcError) else outcome)
    return outcomes


class _Plugin:
    """Changes every container that the runtime asks about."""

    def synchronize(
        self, containers: Sequence[messages.NriContainer]
    ) -> Mapping[str, LinuxResources]:
        return {each.id: LinuxResources("1") for each in containers}

    def pod_announced(self, pod: notifications.PodAnnounced) -> None:
        notifications.encode(pod)

    def pod_removed(self, uid: str) -> None:
        notifications.encode(notifications.SnapshotRequest(sandbox_uid=uid))

    def create(self, call: PluginCall) -> Changes:
        _shown(call.carried())
        return _CHANGES

    def update(self, call: PluginCall) -> Changes:
        return UNCHANGED

    def unhooked(
        self, method: str, call: PluginCall | None, reason: str, detail: str
    ) -> Refuse | None:
        assert reason != "internal_error", detail
        return Refuse(Code.UNAVAILABLE, detail)

    def abandoned(self, call: PluginCall) -> None: ...

    def created(self, container: messages.NriContainer) -> None: ...

    def updated(self, container: messages.NriContainer) -> None: ...

    def ended(self, container: messages.NriContainer) -> None: ...


def _nri_container() -> nri_pb2.Container:
    found = nri_pb2.Container(id="c", pod_sandbox_id="s", name="n", pid=5)
    found.annotations["cdi.k8s.io/a"] = "nvidia.com/gpu=GPU-1"
    found.env.append(b"NVIDIA_VISIBLE_DEVICES=all")
    found.mounts.add(destination=f"{visibility.MOUNT_ROOT}/0", source="/dev/null")
    found.linux.devices.add(path="/dev/nvidia0", type="c", major=195, minor=0)
    resources = found.linux.resources
    resources.cpu.shares.value, resources.cpu.quota.value, resources.cpu.period.value = 2, 5, 10
    resources.cpu.cpus, resources.memory.limit.value = "0-3", 1 << 30
    resources.hugepage_limits.add(page_size="2MB", limit=1 << 21)
    resources.devices.add(allow=True, type="a", access="rwm")
    found.CDI_devices.add(name="nvidia.com/gpu=0")
    return found


def _nri_messages() -> Iterator[tuple[str, Message]]:
    pod = nri_pb2.PodSandbox(id="s", name="p", uid="u", namespace="ns")
    pod.linux.cgroup_parent = "/kubepods/podu"
    event = nri_pb2.EventRequest(pod=pod, container=_nri_container())
    event.linux_resources.cpu.cpus = "0-1"
    yield (
        "Configure",
        nri_pb2.ConfigureRequest(
            runtime_name="containerd", request_timeout=2_000, NRI_version="v0.12.1"
        ),
    )
    yield (
        "Synchronize",
        nri_pb2.SynchronizeRequest(pods=[pod], containers=[_nri_container()], more=False),
    )
    for method in ("RunPodSandbox", "CreateContainer", "UpdateContainer", "StopContainer"):
        yield method, event
    yield (
        "StateChange",
        nri_pb2.StateChangeEvent(
            event=nri_pb2.REMOVE_CONTAINER, pod=pod, container=_nri_container()
        ),
    )


def _call(method: str, payload: bytes) -> bytes:
    request = ttrpc_pb2.Request(service=service.SERVICE, method=method, payload=payload)
    return encode(TtrpcMessage(PLUGIN, 1, REQUEST, 1, request.SerializeToString()))


def _served(data: bytes) -> object:
    """A session of the plugin that receives these bytes."""
    stats = PluginStats()
    plugin = PluginService(_Plugin(), stats, HeldCalls(), lambda: None, lambda: None)
    session = Session(plugin.serve)
    replies: list[object] = []
    session.call("s", "m", b"", 1.0, replies.append)
    session.receive(data)
    plugin.close()
    session.close("over")
    assert not stats.errors.keys() - {"CreateContainer", "UpdateContainer"}, stats.errors
    return len(session.unsent)


def _nri() -> Iterator[Target]:
    kept = dict(_nri_messages())

    def of_message(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
        method = rng.choice(list(kept))
        message = mutations.of_message(rng, [kept[method].SerializeToString()])
        return _call(method, message[: 3 << 20])

    reply = ttrpc_pb2.Response(payload=b"x").SerializeToString()
    whole = [_call(method, each.SerializeToString()) for method, each in kept.items()]
    yield Target("calls of NRI", _served, of_message, whole, raises={MuxError: ""})
    yield Target(
        "frames of NRI",
        _served,
        mutations.of_bytes,
        (*whole, encode(TtrpcMessage(RUNTIME, 1, RESPONSE, 0, reply)) + whole[0]),
        raises={MuxError: ""},
    )
    update = nri_pb2.UpdateContainersResponse()
    update.failed.add(container_id="c")
    yield message_target("UpdateContainersResponse", link.update_failure, update)


def _guard() -> Iterator[Target]:
    validated = nri_pb2.ValidateContainerAdjustmentRequest(container=_nri_container())
    validated.pod.uid = validated.pod.name = "p"
    validated.pod.annotations["scheduling.koordinator.sh/resource-status"] = '{"cpuset":"0-3"}'
    validated.container.linux.resources.cpu.shares.value = 1024
    validated.adjust.linux.resources.cpu.cpus = "0-3"
    pods = {"p": snapshot.PodWanted("ns/p", QoS.LS, snapshot.Wanted(LinuxResources("0-3")))}
    owners = (snapshot.Owner("o", "ns/o", QoS.LSE, "4"),)
    decided = snapshot.Snapshot(1, 1, "b", True, {}, owners, pods, {})
    decisions = Decisions(snapshot.encode(decided))
    text = validated.SerializeToString()

    def refused(raw: bytes) -> object:
        container = ValidatedContainer(raw)
        return refusal(container, decisions), refusal(container, None)

    mutated, errors = mutations.of_message, {ProtobufError: ""}
    yield Target("a container for the guard", refused, mutated, (text,), raises=errors)

    def framed(raw: bytes) -> object:
        return list(Frames().received(raw))

    call = encode(TtrpcMessage(PLUGIN, 1, REQUEST, 0, text))
    yield Target("frames for the guard", framed, mutations.of_bytes, (call,), raises=errors)
    yield json_target(
        "a snapshot for the guard",
        lambda raw: Decisions(raw).pods,
        snapshot.encode(decided),
        raises={SnapshotFormError: ""},
    )


def _koordinator() -> Iterator[Target]:
    request = koordinator_hooks_pb2.ContainerResourceHookRequest()
    request.pod_meta.name, request.pod_meta.uid = "p", "u"
    request.container_meta.name, request.container_meta.id = "c", "i"
    request.pod_annotations["a"] = "b"
    request.pod_cgroup_parent = "/kubepods/podu"
    request.container_resources.cpuset_cpus = "0-3"
    request.container_envs["NVIDIA_VISIBLE_DEVICES"] = "all"
    sandbox = koordinator_hooks_pb2.PodSandboxHookRequest(cgroup_parent="/kubepods/podu")
    sandbox.pod_meta.name = "p"

    def read(raw: bytes) -> object:
        message = koordinator_hooks_pb2.ContainerResourceHookRequest.FromString(raw)
        created = koordinator_messages.creation_of(message)
        _shown(koordinator_messages.carried_by(message))
        koordinator_messages.response_with(message, Changes(LinuxResources("1")))
        return (
            created,
            koordinator_messages.update_of(message),
            koordinator_messages.container_ref(message),
        )

    yield message_target(
        "ContainerResourceHookRequest", read, request, raises={DecodeError: "", wire.WireError: ""}
    )
    yield message_target(
        "PodSandboxHookRequest",
        lambda raw: koordinator_messages.sandbox_of(
            koordinator_hooks_pb2.PodSandboxHookRequest.FromString(raw)
        ),
        sandbox,
        raises={DecodeError: ""},
    )


class _NoClaims:
    """Prepares nothing."""

    def prepare(self, namespace: str, name: str, uid: str, waited_seconds: float) -> PreparedClaim:
        return PreparedClaim(uid, namespace, name)

    def unprepare(self, uid: str) -> None:
        pass

    def registered(self, problem: str) -> None:
        pass

    def devices(self) -> tuple[tuple[str, str, str], ...]:
        return ()


def _dra() -> Iterator[Target]:
    group = PreparedGroup("a", "n", "numa-node-0", "0-1")
    of_request = cdi.metadata(PreparedClaim("u", "ns", "c"), "a", (group,), {})
    yield json_target(
        "metadata of a claim", cdi.told, of_request, raises={JsonError: "", CpuSetError: ""}
    )
    service = DraService(_NoClaims(), "/dra.sock")
    claim = dra_pb2.Claim(namespace="ns", name="c", uid="u")
    request = dra_pb2.PrepareRequest(claims=[claim])
    for name, call in (("prepare", service.prepare), ("unprepare", service.unprepare)):
        yield message_target(f"claims to {name}", call, request, raises={RpcError: ""})
    status = dra_pb2.RegistrationStatus(plugin_registered=False, error="e")
    yield message_target("RegistrationStatus", service.notified, status, raises={RpcError: ""})


def _state_files(name: str) -> list[bytes]:
    rows = [json.loads(line) for line in _VECTORS.read_text().splitlines()]
    found = [row["content"] for row in rows if row.get("file") == name and "content" in row]
    return [each.encode() for each in found[:_MAX_OF_EACH]]


_MEMORY_OF_PODS: Final = FILLED | {"podEntries": {"u": {"memoryBlocks": [BLOCK]}}}
_MEMORY_AS_DATA: Final = {
    "policyName": "",
    "machineState": {},
    "data": json.dumps(FILLED),
    "dataChecksum": 5,
}
_CONFIGURATION: Final = {
    "kubeletconfig": {
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
        "topologyManagerPolicy": "restricted",
        "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "8"},
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
        "reservedSystemCPUs": "0-1",
        "kubeReserved": {"cpu": "500m"},
        "systemReserved": {"cpu": 1},
        "cgroupDriver": "systemd",
        "featureGates": {"MemoryQoS": True},
        "memoryThrottlingFactor": 0.7,
        "singleProcessOOMKill": True,
    }
}


def _kubelet() -> Iterator[Target]:
    yield json_target(
        "cpu_manager_state",
        lambda raw: (state := cpu_manager_state.decode(raw), state.by_uid),
        *_state_files("cpu_manager_state"),
        raises={StateFileError: ""},
    )
    yield json_target(
        "memory_manager_state",
        memory_manager_state.decode,
        FILLED,
        _MEMORY_OF_PODS,
        _MEMORY_AS_DATA,
        raises={StateFileError: ""},
    )
    entry = ENTRY | {"DeviceIDs": {"-1": ["GPU-1"], "0": None}}
    registered = {"nvidia.com/gpu": ["a"]}
    files = [
        {
            "Data": {"PodDeviceEntries": [entry], "RegisteredDevices": registered},
            "BootID": "b",
            "Checksum": 5,
        },
        {"Data": {"PodDeviceEntries": [ENTRY | {"DeviceIDs": ["a"]}]}, "Checksum": 5},
    ]
    yield json_target("device checkpoint", _checkpoint, *files, raises={StateFileError: ""})
    yield Target(
        "KubeletConfiguration",
        lambda value: configuration.to_object(configuration.of_object(value, "configz")),
        mutations.of_values,
        (_CONFIGURATION, _CONFIGURATION["kubeletconfig"]),
        raises={ConfigurationError: "configz: "},
    )
    yield Target(
        "command line of a kubelet",
        lambda text: configuration.of_command_line(text.split("\0"), None, "kubelet 5"),
        mutations.of_name,
        (
            "kubelet\0--cpu-manager-policy=static\0--reserved-cpus\x000-1\0--kube-reserved=cpu=1",
            "kubelet\0--reserved-memory=0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi",
            "kubelet\0--topology-manager-policy-options=max-allowable-numa-nodes=8",
            "kubelet\0--feature-gates=MemoryQoS=true,Other=f",
        ),
        raises={ConfigurationError: "kubelet 5: "},
    )
    yield Target(
        "command lines of processes",
        lambda text: _words(text.split("\0")),
        mutations.of_name,
        (
            "/usr/bin/kubelet\0--root-dir=/a",
            "k3s\0server\0--kubelet-arg=a=b\0--kubelet-arg\0c=d",
            "kubelite\0--kubelet-args-file=/a",
        ),
    )


def _checkpoint(raw: bytes) -> object:
    found = device_checkpoint.decode(raw)
    return (
        found,
        device_checkpoint.reported_devices_of(found, "other"),
        device_checkpoint.nodes_of(found),
    )


def _words(words: list[str]) -> object:
    program = kubelet_process.program_of(words[0])
    return (
        program,
        kubelet_process.runs_kubelet(words) if program else None,
        kubelet_process.hides_flags(words),
        kubelet_process.own_arguments(words) if program else None,
        kubelet_process.arguments_of_file("/var/snap/args/kubelet", "\n".join(words)),
    )


def _pod_resources() -> Iterator[Target]:
    listed = podresources_pb2.ListPodResourcesResponse()
    pod = listed.pod_resources.add(name="p", namespace="ns", cpu_ids=[1, 2])
    container = pod.containers.add(name="c", cpu_ids=[1])
    memory = container.memory.add(memory_type="memory", size=1 << 30)
    memory.topology.nodes.add(ID=0)
    devices = container.devices.add(resource_name="nvidia.com/gpu", device_ids=["GPU-1"])
    devices.topology.nodes.add(ID=1)
    claim = container.dynamic_resources.add(claim_name="c", claim_namespace="ns")
    claimed = claim.claim_resources.add(driver_name="gpu.nvidia.com", device_name="gpu-0")
    claimed.cdi_devices.add(name="k8s.gpu.nvidia.com/device=gpu-0")

    def read(raw: bytes) -> object:
        message = podresources_pb2.ListPodResourcesResponse.FromString(raw)
        found = podresources.pods(message)
        for sent in message.pod_resources:
            _check_pod(sent, podresources.pod(sent))
        reported = reported_devices.of_pod_resources(found, {each.key: "u" for each in found})
        return found, [holder_names.meaning(each, _HOLDERS) for each in reported]

    yield message_target(
        "ListPodResourcesResponse", read, listed, raises={FieldError: "", DecodeError: ""}
    )
    allocatable = podresources_pb2.AllocatableResourcesResponse(
        cpu_ids=[1, 3], memory=container.memory, devices=container.devices
    )
    yield message_target(
        "AllocatableResourcesResponse",
        lambda raw: podresources.allocatable(
            podresources_pb2.AllocatableResourcesResponse.FromString(raw)
        ),
        allocatable,
        raises={FieldError: "", DecodeError: ""},
    )


def _check_pod(sent: podresources_pb2.PodResources, pod: PodResources) -> None:
    """The value has all that was sent, and nothing else."""
    assert pod.key == (sent.namespace, sent.name)
    assert set(pod.cpus) == set(sent.cpu_ids)
    for message, container in zip(sent.containers, pod.containers, strict=True):
        assert set(container.cpus) == set(message.cpu_ids)
        assert sum(each.size_bytes for each in container.memory) == sum(
            each.size for each in message.memory
        )
        assert {each.id for each in container.devices} == {
            name for each in message.devices for name in each.device_ids
        }
        nodes = {node for each in container.devices for node in each.nodes}
        assert nodes <= {node.ID for each in message.devices for node in each.topology.nodes}
        assert all(node >= 0 for node in nodes)


def _device_names() -> Iterator[Target]:
    yield Target(
        "names of held devices",
        lambda text: [
            holder_names.meaning(
                ReportedDevices("u", "c", resource, (text,), HoldingSource.CHECKPOINT), _HOLDERS
            )
            for resource in ("", "nvidia.com/gpu", "gpu.nvidia.com", "dra.cpu", text)
        ],
        mutations.of_name,
        ("GPU-1::3", "MIG-GPU-1/2/3", "gpu-0-mig-1g", "0-3,8", "index:0", "uid-gpu-0"),
    )
    yield Target(
        "MIG's capabilities",
        lambda text: device_files.capabilities(text, text),
        mutations.of_text,
        ("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n", "Character devices:\n236 nvidia-caps\n"),
    )


def _own_files(folder: Path) -> Iterator[Target]:
    """The files and datagrams of Topolet's own processes, of this version or another."""
    pods = {"u": snapshot.PodWanted("ns/p", QoS.LS, snapshot.Wanted(LinuxResources("0-3")))}
    decided = snapshot.Snapshot(
        5,
        7,
        "boot",
        False,
        {"ls": (Pool(0, 0, "0-3"),)},
        (),
        pods,
        {"c": snapshot.Wanted(LinuxResources("1"))},
    )
    yield json_target(
        "snapshot", snapshot.decode, snapshot.encode(decided), raises={SnapshotError: "snapshot: "}
    )
    announced = notifications.PodAnnounced("u", "ns", "p", {"a": "b"}, {"c": "d"}, "/kubepods/podu")
    datagrams = [
        notifications.encode(each)
        for each in (
            announced,
            notifications.ContainerAnnounced(
                announced, "c", LinuxResources(shares=512, hugepages={1 << 21: 1})
            ),
            notifications.Created(
                "c",
                LinuxResources("0-3", mems="0", shares=2, quota=CpuQuota(3), memory_limit_bytes=4),
            ),
            notifications.SnapshotRequest(),
        )
    ]
    yield json_target(
        "notification",
        notifications.decode,
        *datagrams,
        raises={NotificationError: "notification: "},
    )
    hour = {"begin": 1.7e9, "machine": {"cpus": [None, 1.5]}, "numa_nodes": {"0": {}}}
    pools = [{"kind": "LS", "node": 0, "load": {"of_cpus": [4]}}]
    usage = {"hour": {**hour, "pools": pools, "pods": {"u": {"cpu_pressure": [0.5]}}}}
    yield json_target("load of the last hour", past_load.decoded, usage)
    keeping = {
        "node": {"uid": "u", "labels": {"a": "b"}},
        "pods": {"u": {"labels": {}, "annotations": {"a": "b"}, "unequal": ""}},
        "kubelet": {"cpuManagerPolicy": "static"},
    }
    histogram = {"referenceSeconds": 1.7e9, "bucketWeights": {"0": 5, "7": 9}, "totalWeight": 3.5}
    predictions = {"models": {"u": {"seen_at": 1.7e9, "cpus": histogram, "memory": histogram}}}
    offer = {"terms": [{"name": "capacity", "amount": 5}], "limit": 4}
    resource = {"name": "kubernetes.io/batch-cpu", "amount": 0, "offer": offer, "origin": 5}
    batch = {"at": 1.7e9, "resources": [resource]}
    taker = {"kind": "unit", "name": "a", "qos": "", "milliseconds": 5}
    wait = {
        "pod": "ns/p",
        "seconds": 15.0,
        "cpus": "1",
        "waited_milliseconds": 5,
        "throttled_milliseconds": 0,
        "own_milliseconds": 0,
        "usual_milliseconds": None,
        "takers": [taker],
    }
    waits = {
        "at": 1.7e9,
        "waited": 0.5,
        "usual": {"": 0.1, "ns/p": 0.0},
        "disturbed": [{"cpu": wait}],
    }
    burst = {"policy": "auto", "cpuBurstPercent": 50}
    followed = {"slo": {"cpuBurstStrategy": burst}, "origins": {"cpuBurstStrategy": "pool a"}}
    binding = {
        "pod": {"namespace": "ns", "name": "p", "uid": "u"},
        "node": "n",
        "annotations": {"a": "b"},
        "sent_at": 5.0,
    }
    config = {"remote-endpoint": "/a", "failure-policy": "Ignore", "runtime-hooks": ["a"]}
    for name, read, example, errors in (
        ("cluster.json", _cluster_memory, keeping, {}),
        ("predictions", _predictions, predictions, {}),
        ("batch resources", offered.read, batch, {ValueError: ""}),
        ("waits of a node", contention.read, waits, {ValueError: ""}),
        ("strategies of a node", strategies.read, followed, {ValueError: ""}),
        ("sent Binding", _sent_bindings, binding, {ValueError: "", OSError: ""}),
        ("registration of a hook server", _registrations, config, {}),
        (
            "identity of a scheduler",
            _identity,
            {"identity": "a", "boot_id": "b", "device": 1, "inode": 2},
            {},
        ),
        (
            "object of the embedded store",
            _from_store,
            {"metadata": {"name": "n", "resourceVersion": "5"}, "spec": {"nodeName": "n"}},
            {DocumentError: "", StoreError: ""},
        ),
        (
            "saved objects",
            _from_saved,
            {
                "kind": "PodList",
                "items": [
                    {
                        "metadata": {"name": "p", "annotations": {"a": "b"}},
                        "spec": {
                            "containers": [{"name": "c", "resources": {"limits": {"cpu": 1}}}]
                        },
                    },
                    {
                        "kind": "Deployment",
                        "metadata": {"name": "d"},
                        "spec": {
                            "template": {
                                "spec": {
                                    "nodeName": "n",
                                    "priority": 5,
                                    "containers": [{"name": "c"}],
                                }
                            }
                        },
                    },
                ],
            },
            {DocumentError: "", ObjectError: ""},
        ),
    ):
        path = folder / name.replace(" ", "-")

        def of_file(raw: bytes, path: Path = path, read: Callable[[str], object] = read) -> object:
            path.write_bytes(raw)
            return read(str(path))

        yield json_target(name, of_file, example, raises=errors)
    yield json_target(
        "file of a container's CPUs", notice.decode, notice.encode(notice.Notice("0-3", 1))
    )
    yield json_target(
        "record of the audit trail",
        audit.decode,
        audit.encode(audit.Record(version=1, time=audit.stamp(0), pod="web", numa_node=1)),
    )
    finding = {"severity": "error", "code": "c", "text": "t", "remedy": "r"}
    drift = {"severity": "error", "kind": "k", "container": "c", "expected": "0", "found": None}
    findings = {"node": [finding], "findings": [{**drift, "detail": "", "remedy": "r"}]}
    yield json_target(
        "answer of a node's doctor",
        lambda raw: remote.examination(raw, 1),
        findings,
        raises={remote.RemoteError: "topolet doctor ends with exit code 1"},
    )
    lines = (
        b'{"group": "/kubepods/a", "cpus": "0-3"}\n'
        b'{"group": "/kubepods/b", "file": "cpu.max", "value": "max 100000"}\n'
    )
    journal = folder / "journal"

    def read_journal(raw: bytes) -> object:
        journal.write_bytes(raw)
        read = Journal(journal)
        return read.originals, read.values, read.problems

    yield Target("journal", read_journal, mutations.of_bytes, (lines,))


def _predictions(path: str) -> object:
    predictor = Predictor(path)
    return predictor.peaks()


def _cluster_memory(path: str) -> object:
    return cluster_view.ClusterCache(_NoSource(), path).known


class _NoSource:
    """The parser of the stored file does not read the cluster's state."""

    def now(self) -> cluster_view.ClusterState:
        raise AssertionError("only the stored file is read")


def _hierarchies(folder: Path) -> tuple[Hierarchy, ...]:
    """Of v1 and of v2, without groups."""
    (folder / "1/cpuset").mkdir(parents=True, exist_ok=True)
    (folder / "2").mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems", "cpuset.effective_cpus", "cpuset.effective_mems"):
        (folder / "1/cpuset" / name).write_text("0\n")
    (folder / "2/cgroup.controllers").write_text("cpuset\n")
    for name in ("cpuset.cpus.effective", "cpuset.mems.effective"):
        (folder / "2" / name).write_text("0\n")
    found = Hierarchy(str(folder / "1")), Hierarchy(str(folder / "2"))
    assert [each.version for each in found] == [1, 2]
    return found


def _sent_bindings(path: str) -> object:
    folder = f"{path}.d"
    os.makedirs(folder, exist_ok=True)
    os.replace(path, f"{folder}/u.json")
    return candidate.SentBindings(folder, valid=True, give_up=pytest.fail).former


def _registrations(path: str) -> object:
    """The file as that of the agent, and as that of another hook server."""
    folder = f"{path}.d"
    os.makedirs(folder, exist_ok=True)
    shutil.copy(path, f"{folder}/{server.FILE}")
    os.replace(path, f"{folder}/other.json")
    registration = server.Registration(folder, "/a", "Ignore", ("a",))
    found = registration.others()
    registration.withdraw()
    return found


def _identity(path: str) -> object:
    folder = f"{path}.d"
    os.makedirs(folder, exist_ok=True)
    os.replace(path, f"{folder}/identity")
    kept = candidate.IdentityFile(folder, "new")
    kept.close()
    return kept.identity


def _from_store(path: str) -> object:
    return store.served("Pod ns/p", documents.read(path))


def _from_saved(path: str) -> object:
    found = list(documents.saved_objects(path))
    documents.from_json(documents.text(path))
    of_cluster = saved.SavedCluster(found, AgentSelector(), AllocatorRules())
    moved = list(saved.drained_pods(of_cluster.pods.values(), "n"))
    pods = (saved.pod_object(each, "ns", new=number % 2 == 0) for number, each in enumerate(found))
    return list(map(from_object, pods)), len(moved)


_TREE: Final = {
    "sys/devices/system/cpu/online": b"0-1\n",
    "sys/devices/system/cpu/isolated": b"\n",
    "sys/devices/system/node/online": b"0\n",
    "sys/devices/system/node/node0/cpumap": b"3\n",
    "sys/devices/system/node/node0/distance": b"10\n",
    "sys/devices/system/node/node0/meminfo": b"Node 0 MemTotal:  16000 kB\n",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": b"4\n",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages": b"4\n",
    "proc/meminfo": b"MemTotal: 16000 kB\nHugepagesize: 2048 kB\n",
    "proc/cmdline": b"quiet isolcpus=nohz,domain,1\n",
    "proc/cpuinfo": b"processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 21\n"
    b"model name\t: AMD EPYC\n\nprocessor\t: 1\nCPU part\t: 0xd46\n",
    "proc/stat": b"cpu 1 2 3\nbtime 1700000000\n",
    **{
        f"sys/devices/system/cpu/cpu{cpu}/{name}": text
        for cpu in (0, 1)
        for name, text in {
            "topology/core_id": b"%d\n" % cpu,
            "topology/physical_package_id": b"0\n",
            "topology/die_id": b"0\n",
            "topology/thread_siblings": b"%d\n" % (1 << cpu),
            "topology/core_siblings": b"3\n",
            "cache/index3/level": b"3\n",
            "cache/index3/type": b"Unified\n",
            "cache/index3/shared_cpu_map": b"3\n",
            "cache/index3/size": b"32768K\n",
        }.items()
    },
    "proc/driver/nvidia/gpus/0000:3b:00.0/numa_status": b"Node:  0\n",
    "sys/bus/dax/devices/dax0.0/target_node": b"0\n",
    "sys/devices/virtual/memory_tiering/memory_tier4/nodelist": b"0\n",
    **{
        f"sys/devices/system/node/node0/{name}": text
        for name, text in {
            "access1/initiators/read_bandwidth": b"1000\n",
            "access1/initiators/read_latency": b"90\n",
            "memory_side_cache/index1/size": b"1048576\n",
        }.items()
    },
    **{
        f"sys/bus/pci/devices/0000:3b:00.0/{name}": text
        for name, text in {
            "vendor": b"0x10de\n",
            "device": b"0x20b5\n",
            "class": b"0x030200\n",
            "numa_node": b"0\n",
            "local_cpulist": b"0-1\n",
            "sriov_totalvfs": b"4\n",
            "infiniband/mlx5_0/node_guid": b"1:2:3:4\n",
            "infiniband/mlx5_0/ports/1/state": b"4: ACTIVE\n",
            "infiniband/mlx5_0/ports/1/rate": b"100 Gb/sec (4X EDR)\n",
            "infiniband_verbs/uverbs0/dev": b"231:192\n",
        }.items()
    },
}


def _of_files(rng: random.Random, seeds: Sequence[tuple[str, bytes]]) -> tuple[str, bytes]:
    path, content = rng.choice(seeds)
    return path, mutations.of_bytes(rng, [content])


def _kernel(folder: Path) -> Iterator[Target]:
    for path, content in _TREE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    def machine(changed: tuple[str, bytes]) -> object:
        path, content = changed
        (folder / path).write_bytes(content)
        try:
            topology = cpus.read(str(folder))
            functions = pci.read(str(folder), topology)
            return (
                topology,
                functions,
                network.rdma(str(folder), functions.by_address),
                fpga.fpgas(str(folder), functions.by_address),
                numa.huge_pages(str(folder), (0,)),
                gpus.boot_seconds(str(folder)),
                hardware.read(str(folder), topology),
            )
        finally:
            (folder / path).write_bytes(_TREE[path])

    yield Target(
        "sysfs and procfs", machine, _of_files, tuple(_TREE.items()), raises={DiscoveryError: ""}
    )
    proc = folder / "proc"
    of_process = {
        "status": b"Name:\tkubelet\nPPid:\t1\nUid:\t0\t0\t0\t0\nNSpid:\t7\n"
        b"Cpus_allowed_list:\t0-1\n",
        "cmdline": b"kubelet\0--a\0",
        "cgroup": b"4:cpuset,cpu:/system.slice/a\n0::/kubepods/podu\n",
        "comm": b"kubelet\n",
        "mountinfo": b"31 24 0:27 / /sys/fs/cgroup rw - cgroup2 none rw\n"
        b"32 24 0:28 / /sys/fs/cgroup/cpuset\\040a rw - cgroup none rw,cpuset\n",
        "schedstat": b"5000000 100 3\n",
        "stat": b"7 (a) b) S 1 " + b"0 " * 35 + b"3 0\n",
    }
    (proc / "7/task").mkdir(parents=True, exist_ok=True)
    if not (proc / "7/task/7").is_symlink():
        (proc / "7/task/7").symlink_to("..")
    hierarchies = _hierarchies(folder / "cgroup")
    for name, content in of_process.items():
        (proc / "7" / name).write_bytes(content)

    def process(changed: tuple[str, bytes]) -> object:
        name, content = changed
        (proc / "7" / name).write_bytes(content)
        try:
            found: list[object] = [pids(str(proc)), kubelet_process.find(str(proc))]
            with Process(str(proc), 7) as of:
                found += [of.argv0(), of.name(), of.groups()]
                found.append(outcome_of(of.argv, UnreadableError))
                found.append(outcome_of(of.status, UnreadableError))
            found += [own_root(each, str(proc / "7")) for each in hierarchies]
            found.append(allowed_cpus(str(proc), 7))
            found.append(Threads(str(folder)).since({}))
            return found
        finally:
            (proc / "7" / name).write_bytes(of_process[name])

    yield Target("files of a process", process, _of_files, tuple(of_process.items()))
    yield Target(
        "limits of a cgroup",
        lambda text: (
            outcome_of(lambda: limits.quota_of(text), ValueError),
            outcome_of(lambda: limits.shares_of_weight(text), ValueError),
            outcome_of(lambda: limits.memory_of(text), ValueError),
            outcome_of(lambda: limits.nodes(text), ValueError),
            outcome_of(lambda: limits.max_text(CpuQuota(5_000), text), ValueError),
            outcome_of(lambda: limits.quota_text(CpuQuota(5_000), text), ValueError),
            outcome_of(lambda: limits.same(limits.MAX, text, "max 100000"), ValueError),
            outcome_of(lambda: limits.grows(limits.MEMORY_MAX, text, "5"), ValueError),
            *(
                outcome_of(functools.partial(limits.same, f"{file} 8:0", text, "5"), ValueError)
                for file in (limits.IO_MAX, limits.IO_WEIGHT, limits.IO_COST_QOS)
            ),
        ),
        mutations.of_text,
        (
            "max 100000",
            "50000 100000",
            "-1",
            "9223372036854771712",
            "0-1",
            "enable=1 ctrl=user rpct=95.00 rlat=9",
        ),
    )
    yield Target(
        "uevents and inotify",
        lambda raw: (kernel_events.subsystem(raw), conflicts.socket_attributes(raw)),
        mutations.of_bytes,
        (
            b"add@/devices/a\0ACTION=add\0SUBSYSTEM=pci\0",
            b"\x0e\x00\x00\x00/run/a.sock\x00\x00\x00\x08\x00\x02\x00\x01\x00\x00\x00",
        ),
    )


def targets(folder: Path) -> Iterator[Target]:
    """`folder`: for files, which they keep."""
    yield from _cri_requests()
    yield from _runtime()
    yield from _nri()
    yield from _guard()
    yield from _koordinator()
    yield from _dra()
    yield from _kubelet()
    yield from _pod_resources()
    yield from _device_names()
    yield from _own_files(folder)
    yield from _kernel(folder)
