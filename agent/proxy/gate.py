"""The relay's gate: what admission reads of CRI messages, and its answers as changed messages.

Field numbers: Kubernetes, staging/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final

from agent.hooks import carriers
from agent.hooks.admission import Admission
from agent.hooks.carriers import Carried
from agent.hooks.requests import (
    UNCHANGED,
    CarriedNode,
    Changes,
    CreateContainer,
    Creation,
    SandboxCreation,
    Unread,
    Update,
    UpdateContainer,
    Waiting,
    announced_pod,
)
from agent.model import notice
from agent.model.devices import visibility
from agent.model.devices.visibility import Mount
from agent.model.linux_resources import NO_RESOURCES, from_cri, to_cri
from agent.model.notifications import PodAnnounced
from agent.model.settings.frontends import CREATE, RUN, UPDATE, UPDATE_SANDBOX, Deadlines
from agent.model.verdict import FailureReason, Refuse, Wait
from agent.model.wire import (
    BYTES,
    WireError,
    fields,
    filtered,
    merged,
    number,
    patch,
    payloads,
    string_map,
    text,
)
from agent.relay.gate import Call, Forward, GateVerdict, Replace

# PodSandboxConfig
_METADATA, _LABELS, _POD_ANNOTATIONS, _LINUX = 1, 6, 7, 8
# CreateContainerRequest: config, sandbox_config; config.linux.resources
CONFIG, _SANDBOX_CONFIG = 2, 3
CREATE_RESOURCES = (CONFIG, 15, 1)
_SECURITY_CONTEXT, _PRIVILEGED = (CONFIG, 15, 2), 2
# of config
_ENVIRONMENT, _MOUNTS, _NODES, _ANNOTATIONS, _CDI_DEVICES = 6, 7, 8, 10, 17
# Device: container_path, host_path, permissions
_NODE_PATH, _NODE_HOST_PATH, _NODE_PERMISSIONS = 1, 2, 3
# Mount
_CONTAINER_PATH, _HOST_PATH, _READ_ONLY = 1, 2, 3
# UpdateContainerResourcesRequest: linux
_UPDATE_RESOURCES = (2,)


def run_pod_sandbox(message: bytes) -> PodAnnounced:
    """The pod of a RunPodSandboxRequest. Raises WireError."""
    return _pod(merged(message, 1))


def create_container(message: bytes) -> CreateContainer:
    """What decisions read of a CreateContainerRequest. Raises WireError."""
    config = merged(message, CONFIG)
    return CreateContainer(
        _pod(merged(message, _SANDBOX_CONFIG)),
        text(merged(config, 1), 1),
        from_cri(merged(message, *CREATE_RESOURCES)),
    )


def mounted(message: bytes) -> frozenset[str]:
    """The paths in the container that a request to create it mounts, and those where a mount is
    impossible. Raises WireError."""
    mounts = payloads(merged(message, CONFIG), _MOUNTS)
    return notice.taken_paths(
        (text(each, _CONTAINER_PATH), bool(number(each, _READ_ONLY))) for each in mounts
    )


def update_container(message: bytes) -> UpdateContainer:
    """What decisions read of an UpdateContainerResourcesRequest. Raises WireError."""
    resources = merged(message, *_UPDATE_RESOURCES)
    return UpdateContainer(text(message, 1), from_cri(resources))


def removed_id(message: bytes) -> str:
    """The id in a RemoveContainerRequest. Raises WireError."""
    return text(message, 1)


def created_id(reply: bytes) -> str:
    """The id in a reply of RunPodSandbox or CreateContainer. Raises WireError."""
    return text(reply, 1)


def _pod(sandbox_config: bytes) -> PodAnnounced:
    metadata = merged(sandbox_config, _METADATA)
    name, uid, namespace = (text(metadata, number) for number in (1, 2, 3))
    return announced_pod(
        uid,
        namespace,
        name,
        string_map(sandbox_config, _LABELS),
        string_map(sandbox_config, _POD_ANNOTATIONS),
        text(merged(sandbox_config, _LINUX), 1),
    )


_MARKERS: Final = {
    _ENVIRONMENT: (visibility.VISIBLE_DEVICES.encode(), carriers.PRELOAD.encode()),
    _MOUNTS: (
        b"nvidia-container-devices",
        b"device-plugins",
        b"pod-resources",
        b"node-feature-discovery",
    ),
    _NODES: (b"",),
    _ANNOTATIONS: (visibility.CDI_ANNOTATIONS.encode(),),
    _CDI_DEVICES: (b"",),
}
"""By field of the container's config: each entry that may name devices contains one of these
texts. Other entries are not decoded: most requests have many."""


def carried(message: bytes) -> Carried:
    """The parts of a CreateContainerRequest that may name devices. Raises WireError."""
    found: dict[int, list[bytes]] = {field: [] for field in _MARKERS}
    for field, kind, payload in fields(merged(message, CONFIG)):
        if kind == BYTES and field in found and any(map(payload.__contains__, _MARKERS[field])):
            found[field].append(payload)
    variables = [
        (name, text(each, 2))
        for each in found[_ENVIRONMENT]
        if (name := text(each, 1)) in (visibility.VISIBLE_DEVICES, carriers.PRELOAD)
    ]
    annotations = [
        (key, text(each, 2))
        for each in found[_ANNOTATIONS]
        if visibility.is_cdi_annotation(key := text(each, 1))
    ]
    sandbox = merged(message, _SANDBOX_CONFIG)
    pod_annotations: dict[str, str] = {}
    if visibility.CDI_ANNOTATIONS.encode() in sandbox:
        pod_annotations = string_map(sandbox, _POD_ANNOTATIONS)
    mount_paths = [text(each, _CONTAINER_PATH) for each in found[_MOUNTS]]
    return Carried(
        environment=tuple(value for name, value in variables if name == visibility.VISIBLE_DEVICES),
        preload=dict(variables).get(carriers.PRELOAD, ""),
        mounts=tuple(each for each in mount_paths if visibility.mounted(each) is not None),
        annotations=tuple(annotations),
        cdi_devices=tuple(text(each, 1) for each in found[_CDI_DEVICES]),
        nodes=tuple(_carried_node(each) for each in found[_NODES]),
        privileged=bool(number(merged(message, *_SECURITY_CONTEXT), _PRIVILEGED)),
        serving=carriers.serving(text(each, _HOST_PATH) for each in found[_MOUNTS]),
        of_pod=visibility.of_pod(pod_annotations),
    )


def _carried_node(message: bytes) -> CarriedNode:
    return CarriedNode(
        visibility.cleaned(text(message, _NODE_HOST_PATH)),
        text(message, _NODE_PATH),
        text(message, _NODE_PERMISSIONS),
    )


def create_request_with(message: bytes, changes: Changes) -> bytes | None:
    """The new CreateContainerRequest; None without changes. Raises WireError."""
    if changes == UNCHANGED:
        return None
    patches = _resources(CREATE_RESOURCES, changes)
    if changes.mounts:
        taken = mounted(message)
        patches += [_mount(each) for each in changes.mounts if each.container_path not in taken]
    patches += [_pair(_ENVIRONMENT, *each) for each in changes.environment]
    patches += [_pair(_ANNOTATIONS, key, value) for key, value in changes.annotations if value]
    patches += [patch((CONFIG, _CDI_DEVICES), patch((1,), name)) for name in changes.cdi_devices]
    patches += [_node(each) for each in changes.nodes]
    kept = _without_replaced(message, changes)
    return kept + b"".join(patches) if patches or kept != message else None


def _without_replaced(message: bytes, changes: Changes) -> bytes:
    """The request without the entries that the changes remove or replace."""
    variables = {name for name, _ in changes.environment}
    removed: dict[int, tuple[int, Collection[str]]] = {
        _ENVIRONMENT: (1, variables),
        _ANNOTATIONS: (1, {key for key, _ in changes.annotations}),
        _MOUNTS: (_CONTAINER_PATH, changes.removed_mounts),
        _CDI_DEVICES: (1, changes.removed_cdi_devices),
        _NODES: (_NODE_PATH, [each.container_path for each in changes.removed_nodes]),
    }
    if not any(name.encode() in message for _, names in removed.values() for name in names):
        return message

    def keeps(field: int, payload: bytes) -> bool:
        named_by, names = removed.get(field, (1, ()))
        return not names or text(payload, named_by) not in names

    return filtered(message, keeps, CONFIG)


def update_request_with(message: bytes, changes: Changes) -> bytes | None:
    """The new UpdateContainerResourcesRequest; None without changes."""
    patches = _resources(_UPDATE_RESOURCES, changes)
    return b"".join((message, *patches)) if patches else None


def _resources(path: tuple[int, ...], changes: Changes) -> list[bytes]:
    if changes.resources == NO_RESOURCES:
        return []
    return [patch(path, to_cri(changes.resources))]


def _mount(mount: Mount) -> bytes:
    one = patch((_CONTAINER_PATH,), mount.container_path) + patch((_HOST_PATH,), mount.host_path)
    if not mount.writable:
        one += patch((_READ_ONLY,), 1)
    return patch((CONFIG, _MOUNTS), one)


def _node(node: CarriedNode) -> bytes:
    one = (
        patch((_NODE_PATH,), node.container_path)
        + patch((_NODE_HOST_PATH,), node.host_path)
        + patch((_NODE_PERMISSIONS,), node.permissions)
    )
    return patch((CONFIG, _NODES), one)


def _pair(field: int, key: str, value: str) -> bytes:
    return patch((CONFIG, field), patch((1,), key) + patch((2,), value))


_START: Final = "StartContainer"
_REMOVE: Final = "RemoveContainer"
_ENDINGS: Final = ("StopContainer", _REMOVE, "StopPodSandbox", "RemovePodSandbox")
_SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")

METHODS: Final = {
    f"/{service}/{method}".encode(): method
    for service in _SERVICES
    for method in (RUN, CREATE, UPDATE, UPDATE_SANDBOX, _START, *_ENDINGS)
}
"""The hooked methods by their path."""


class _Reported:
    """A call that stops or removes a container or sandbox, or updates a sandbox. It is forwarded
    unchanged, and the agent is notified of its result."""

    def __init__(self, removed: str) -> None:
        self.removed = removed
        """The id of the removed container, "" for other calls."""


class _Starting:
    """A call that starts a container. It is forwarded unchanged, but owners of CPUs wait while the
    container may get a cpuset that the agent has changed in the meantime. `number` identifies the
    start for admission."""

    def __init__(self, number: int) -> None:
        self.number = number


class CpusetGate:
    """Holds a call that waits for the agent until its hook's deadline; then the failure policy
    decides."""

    methods = frozenset(METHODS)

    def __init__(self, admission: Admission, deadlines: Deadlines) -> None:
        self._admission = admission
        self._deadlines = deadlines

    def request(self, call: Call, message: bytes) -> GateVerdict:
        try:
            return self._request(call, message)
        except WireError as error:
            return self.unhooked(call, FailureReason.MALFORMED, str(error))

    def _request(self, call: Call, message: bytes) -> GateVerdict:
        """Raises WireError for a message that can't be decoded."""
        method = METHODS[call.path]
        if method == CREATE:
            return self._create(call, message)
        if method == UPDATE:
            return self._update(call, message)
        if method == RUN:
            return self._run(call, message)
        if method == _START:
            call.state = _Starting(self._admission.start())
        else:
            call.state = _Reported(removed_id(message) if method == _REMOVE else "")
        return Forward()

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        """The answer to a call that no hook can decide (`Admission.unhooked`)."""
        creation = call.state if isinstance(call.state, Creation) else None
        answer = self._admission.unhooked(METHODS[call.path], creation, reason, detail)
        if isinstance(answer, Refuse):
            return answer
        call.state = answer
        return Forward()

    def reply(self, call: Call, message: bytes | None) -> None:
        """Reports the result to admission."""
        if isinstance(call.state, SandboxCreation):
            self._admission.pod_created(call.state.pod, made=bool(_made(message)))
        elif isinstance(call.state, Creation | Unread):
            self._admission.created(call.state, _made(message))
        elif isinstance(call.state, Update) and message is not None:
            self._admission.updated(call.state)
        elif isinstance(call.state, _Starting):
            self._admission.started(call.state.number)
        elif isinstance(call.state, _Reported) and message is not None:
            self._admission.removed(call.state.removed)
            self._admission.report_change()

    def abandoned(self, call: Call) -> None:
        """Reports to admission that the caller cancelled a held call."""
        if isinstance(call.state, SandboxCreation):
            self._admission.pod_created(call.state.pod, made=False)
        elif isinstance(call.state, Creation):
            self._admission.abandoned(call.state)

    def _run(self, call: Call, message: bytes) -> GateVerdict:
        if not isinstance(call.state, SandboxCreation):
            call.state = SandboxCreation(run_pod_sandbox(message), self._waiting(call))
        answer = self._admission.create_sandbox(call.state)
        return answer if isinstance(answer, Wait) else Forward()

    def _create(self, call: Call, message: bytes) -> GateVerdict:
        if not isinstance(call.state, Creation):
            call.state = Creation(create_container(message), self._waiting(call))
        answer = self._admission.create(call.state, partial(carried, message))
        if not isinstance(answer, Changes):
            return answer
        return _verdict(create_request_with(message, answer))

    def _update(self, call: Call, message: bytes) -> GateVerdict:
        if not isinstance(call.state, Update):
            call.state = Update(update_container(message), self._waiting(call))
        answer = self._admission.update(call.state)
        if not isinstance(answer, Changes):
            return answer
        return _verdict(update_request_with(message, answer))

    def _waiting(self, call: Call) -> Waiting:
        return Waiting(call.started, self._deadlines.of(METHODS[call.path]))


def _verdict(message: bytes | None) -> GateVerdict:
    return Forward() if message is None else Replace(message)


def _made(reply: bytes | None) -> str:
    """The id in a reply; "" without a reply. Also "" for a reply that can't be decoded: otherwise
    the creation would stay in progress, and owners would wait for it forever."""
    try:
        return created_id(reply or b"")
    except WireError:
        return ""
