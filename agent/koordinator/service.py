"""The calls of koord-runtime-proxy, each in a thread: bytes in, bytes or a refusal out.

`HookService` decodes and counts the calls, and holds those that wait. `KoordinatorHooks` calls
admission, and keeps the creations in progress.

koord-runtime-proxy merges a response into the request (pkg/runtimeproxy/resexecutor/cri/utils.go,
updateResource and transferToCRIContainerEnvs): if the response has any resources, it overwrites
cpuset, memory nodes and OOM score with those of the response; if it has an environment, it replaces
the whole environment. So a response with resources, or with an environment, repeats the request's
values that stay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from agent.hooks import carriers
from agent.hooks.admission import Admission
from agent.hooks.carriers import Carried
from agent.hooks.requests import (
    Changes,
    ContainerName,
    CreateContainer,
    Creation,
    DeviceFields,
    SandboxCreation,
    Unread,
    Update,
    UpdateContainer,
    Verdict,
    Waiting,
    announced_pod,
)
from agent.model.devices import visibility
from agent.model.linux_resources import UNLIMITED, LinuxResources, from_cri, to_cri
from agent.model.notifications import PodAnnounced
from agent.model.settings import frontends
from agent.model.settings.frontends import Deadlines
from agent.model.verdict import Code, FailureReason, Refuse, Wait, undecided
from agent.model.wire import WireError
from agent.proto import DecodeError
from agent.proto import koordinator_hooks_pb2 as pb
from agent.rpc.held_calls import HeldCalls

SETTABLE: Final = DeviceFields(frozenset({"environment"}))
"""The fields of a container's devices that a response can change."""


class ContainerRef(msgspec.Struct, frozen=True):
    """An existing container, with the pod and name that its creation had."""

    pod_uid: str
    name: str
    container_id: str


def sandbox_of(request: pb.PodSandboxHookRequest) -> PodAnnounced:
    """The pod with the fields that decisions read."""
    return _pod(request.pod_meta, request.labels, request.annotations, request.cgroup_parent)


def creation_of(request: pb.ContainerResourceHookRequest) -> CreateContainer:
    """What decisions read of a request to create a container. Raises WireError."""
    return CreateContainer(
        _pod_of(request), request.container_meta.name, _requested(request.container_resources)
    )


def carried_by(request: pb.ContainerResourceHookRequest) -> Carried:
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


def update_of(request: pb.ContainerResourceHookRequest) -> UpdateContainer:
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


def response_with(
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


log = logging.getLogger(__name__)
SERVICE: Final = "runtime.v1alpha1.RuntimeHookService"
_ASK_AGAIN_SECONDS: Final = 0.02
"""The agent decides in the same process, and each question takes time from that."""
_MARGIN_SECONDS: Final = 0.2
"""A held call ends this long before the caller's timeout, so that the answer still arrives."""
SETTLE_SECONDS: Final = 10.0
"""A creation whose container did not start for so long counts as ended: the protocol does not
report a failed creation."""
_METHODS: Final = {
    "PreRunPodSandbox": frontends.RUN,
    "PostStopPodSandbox": "StopPodSandbox",
    "PreCreateContainer": frontends.CREATE,
    "PreStartContainer": "StartContainer",
    "PostStartContainer": "StartContainer",
    "PreUpdateContainerResources": frontends.UPDATE,
    "PostStopContainer": "StopContainer",
}
"""By hook of Koordinator, the hook's name in failure policies."""


class Caller(Protocol):
    """The part of a gRPC context that this module uses."""

    def is_active(self) -> bool:
        """Whether the caller still waits."""
        ...

    def time_remaining(self) -> float | None:
        """Seconds until the caller gives up; None when it never does."""
        ...


class RuntimeHookCall:
    """A request to create a sandbox, or to create or update a container, until its answer.
    `budget_seconds`: for how long the caller lets it wait, None without a limit. `carried` reads
    the devices that a request to create a container names. `state`: what KoordinatorHooks keeps for
    the call, None at first."""

    def __init__(self, started: float, budget_seconds: float | None) -> None:
        self.started = started
        self.budget_seconds = budget_seconds
        self.carried: Callable[[], Carried] = Carried
        self.state: object = None


class HookService:
    """Answers calls. `calls` and `errors` count by hook; `held`: the calls that wait now."""

    def __init__(self, hooks: KoordinatorHooks) -> None:
        self._hooks = hooks
        self._lock = threading.Lock()
        self._answers: dict[str, Callable[[bytes, RuntimeHookCall, Caller], bytes | Refuse]] = {
            "PreRunPodSandbox": self._sandbox_announced,
            "PostStopPodSandbox": self._sandbox_stopped,
            "PreCreateContainer": self._create,
            "PreUpdateContainerResources": self._update,
            "PreStartContainer": self._exists,
            "PostStartContainer": self._exists,
            "PostStopContainer": self._stopped,
        }
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.held: HeldCalls[RuntimeHookCall] = HeldCalls(seconds=_ASK_AGAIN_SECONDS)

    @property
    def hooks(self) -> tuple[str, ...]:
        """The names of all hooks; a method's name is its hook's with "Hook" behind it."""
        return tuple(self._answers)

    def answer(self, hook: str, message: bytes, caller: Caller) -> bytes | Refuse:
        """The response to any request. Blocks while the call is held."""
        remaining = caller.time_remaining()
        budget = None if remaining is None else max(remaining - _MARGIN_SECONDS, 0.0)
        call = RuntimeHookCall(time.monotonic(), budget)
        with self._lock:
            self.calls[hook] += 1
        try:
            return self._answers[hook](message, call, caller)
        except (DecodeError, WireError) as error:
            return self._unhooked(hook, call, FailureReason.MALFORMED, str(error))
        except Exception as error:  # noqa: BLE001  the one guard around a hook
            log.error("the hook %s failed: %r", hook, error)
            with self._lock:
                self.errors[hook] += 1
            return self._unhooked(hook, call, FailureReason.INTERNAL_ERROR, repr(error))

    def _unhooked(
        self, hook: str, call: RuntimeHookCall, reason: str, detail: str
    ) -> bytes | Refuse:
        try:
            with self._lock:
                refusal = self._hooks.unhooked(hook, call, reason, detail)
        except Exception as error:  # noqa: BLE001  the one guard around a hook
            log.error("the hook %s failed: %r", hook, error)
            return undecided(error)
        return b"" if refusal is None else refusal

    def _sandbox_announced(self, message: bytes, call: RuntimeHookCall, caller: Caller) -> bytes:
        pod = sandbox_of(pb.PodSandboxHookRequest.FromString(message))
        self._answered(call, caller, lambda: self._hooks.pod_announced(call, pod))
        return b""

    def _sandbox_stopped(self, message: bytes, call: RuntimeHookCall, caller: Caller) -> bytes:
        pod = sandbox_of(pb.PodSandboxHookRequest.FromString(message))
        with self._lock:
            self._hooks.pod_stopped(pod.uid)
        return b""

    def _exists(self, message: bytes, call: RuntimeHookCall, caller: Caller) -> bytes:
        container = container_ref(pb.ContainerResourceHookRequest.FromString(message))
        with self._lock:
            self._hooks.exists(container)
        return b""

    def _stopped(self, message: bytes, call: RuntimeHookCall, caller: Caller) -> bytes:
        container = container_ref(pb.ContainerResourceHookRequest.FromString(message))
        with self._lock:
            self._hooks.stopped(container)
        return b""

    def _create(self, message: bytes, call: RuntimeHookCall, caller: Caller) -> bytes | Refuse:
        request = pb.ContainerResourceHookRequest.FromString(message)
        wanted = creation_of(request)
        call.carried = partial(carried_by, request)
        return self._settled(request, call, caller, lambda: self._hooks.create(call, wanted))

    def _update(self, message: bytes, call: RuntimeHookCall, caller: Caller) -> bytes | Refuse:
        request = pb.ContainerResourceHookRequest.FromString(message)
        wanted = update_of(request)
        return self._settled(request, call, caller, lambda: self._hooks.update(call, wanted))

    def _settled(
        self,
        request: pb.ContainerResourceHookRequest,
        call: RuntimeHookCall,
        caller: Caller,
        decide: Callable[[], Verdict],
    ) -> bytes | Refuse:
        answer = self._answered(call, caller, decide)
        if isinstance(answer, Changes):
            return response_with(request, answer).SerializeToString()
        assert isinstance(answer, Refuse)
        return answer

    def _answered(
        self, call: RuntimeHookCall, caller: Caller, decide: Callable[[], Verdict]
    ) -> Verdict:
        with self._lock:
            answer = decide()
        if not isinstance(answer, Wait):
            return answer

        def ask() -> None:
            nonlocal answer
            with self._lock:
                if caller.is_active():
                    answer = decide()
                else:
                    self._hooks.abandoned(call)
                    answer = Refuse(Code.CANCELLED, "the caller cancelled the call")
            if not isinstance(answer, Wait):
                self.held.release(call)

        self.held.block(call, ask)
        return answer


class _InProgress(NamedTuple):
    creation: Creation
    over_at: float


class KoordinatorHooks:
    """Translates the calls of koord-runtime-proxy to calls of admission. The methods run one at a
    time, and none may block. The caller repeats a call while the answer is Wait: until the hook's
    deadline, or until shortly before the caller's own; then the failure policy decides."""

    def __init__(self, admission: Admission, deadlines: Deadlines) -> None:
        self._admission = admission
        self._deadlines = deadlines
        self._in_progress: dict[tuple[str, str], _InProgress] = {}

    def pod_announced(self, call: RuntimeHookCall, pod: PodAnnounced) -> Verdict:
        """The pod's sandbox is about to be created."""
        if not isinstance(call.state, SandboxCreation):
            call.state = SandboxCreation(pod, self._waiting(call, frontends.RUN))
        return self._admission.create_sandbox(call.state)

    def create(self, call: RuntimeHookCall, request: CreateContainer) -> Verdict:
        """The answer to a request to create a container."""
        self._settle()
        if not isinstance(call.state, Creation):
            call.state = Creation(request, self._waiting(call, frontends.CREATE))
            self._ended(request.pod.uid, request.container_name)
        answer = self._admission.create(call.state, call.carried)
        if isinstance(answer, Changes):
            key = request.pod.uid, request.container_name
            self._ended(*key)
            self._in_progress[key] = _InProgress(call.state, time.monotonic() + SETTLE_SECONDS)
        return answer

    def update(self, call: RuntimeHookCall, request: UpdateContainer) -> Verdict:
        """The answer to a request to update a container."""
        if not isinstance(call.state, Update):
            call.state = Update(request, self._waiting(call, frontends.UPDATE))
        answer = self._admission.update(call.state)
        if isinstance(answer, Changes):
            # koord-runtime-proxy repeats a container's values in each of its updates.
            self._admission.updated(call.state, may_be_of_agent=True)
        return answer

    def exists(self, container: ContainerRef) -> None:
        """The container was created, and is about to start or has started."""
        pending = self._in_progress.pop((container.pod_uid, container.name), None)
        if pending is None:
            self._admission.report_change()
        else:
            self._admission.created(pending.creation, container.container_id)

    def stopped(self, container: ContainerRef) -> None:
        """The container has stopped."""
        self._admission.removed(container.container_id)
        self._admission.report_change()

    def pod_stopped(self, uid: str) -> None:
        """The pod's sandbox has stopped."""
        for key in [key for key in self._in_progress if key[0] == uid]:
            self._ended(*key)
        self._admission.sandbox_changed(uid)

    def abandoned(self, call: RuntimeHookCall) -> None:
        """The caller of a held call gave up."""
        if isinstance(call.state, SandboxCreation):
            self._admission.pod_created(call.state.pod, made=False)
        elif isinstance(call.state, Creation):
            self._admission.abandoned(call.state)

    def unhooked(self, hook: str, call: RuntimeHookCall, reason: str, detail: str) -> Refuse | None:
        """The answer to a call that can't be read or whose hook failed; None if it continues
        unchanged."""
        creation = call.state if isinstance(call.state, Creation) else None
        answer = self._admission.unhooked(_METHODS[hook], creation, reason, detail)
        if isinstance(answer, Unread):
            self._admission.created(answer, "")
            return None
        return answer

    def _settle(self) -> None:
        """Ends the creations that are older than SETTLE_SECONDS."""
        now = time.monotonic()
        for key in [key for key, pending in self._in_progress.items() if pending.over_at <= now]:
            self._ended(*key)

    def _ended(self, uid: str, name: str) -> None:
        """Ends a creation in progress: it is unknown whether the container exists."""
        pending = self._in_progress.pop((uid, name), None)
        if pending is not None:
            self._admission.created(pending.creation, "")

    def _waiting(self, call: RuntimeHookCall, hook: str) -> Waiting:
        timeout_seconds = self._deadlines.of(hook)
        if call.budget_seconds is not None:
            timeout_seconds = min(timeout_seconds, call.budget_seconds)
        return Waiting(call.started, timeout_seconds)
