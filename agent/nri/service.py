"""The runtime's calls to a plugin, answered by hooks (`Plugin`) that never block and may answer
Wait.

The runtime does not create a container if the answer is an error, so the failure policy decides
what an internal error of a hook means. If the answer is late, the runtime ends the session and
creates the container unchanged, so held calls end well before that. (Both: NRI:
pkg/adaptation/plugin.go, createContainer.)
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from agent.hooks.carriers import Carried
from agent.hooks.requests import (
    UNCHANGED,
    Changes,
    ContainerName,
    CreateContainer,
    UpdateContainer,
    Verdict,
)
from agent.model import notice
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import PodAnnounced
from agent.model.verdict import Code, FailureReason, Refuse, Wait, undecided
from agent.nri import messages
from agent.nri.messages import NriContainer
from agent.nri.ttrpc import Incoming
from agent.proto import DecodeError, Message
from agent.proto import nri_pb2 as pb
from agent.rpc.held_calls import HeldCalls

SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
_DEFAULT_TIMEOUT_SECONDS: Final = 2.0
"""The runtime's timeout for each of its calls; runtimes before NRI 0.9 do not send theirs."""
# No event has a number above 11: NRI before 0.10 refuses those (pkg/adaptation/plugin.go,
# configure).
_EVENTS: Final = {
    "RunPodSandbox": pb.RUN_POD_SANDBOX,
    "RemovePodSandbox": pb.REMOVE_POD_SANDBOX,
    "CreateContainer": pb.CREATE_CONTAINER,
    "PostCreateContainer": pb.POST_CREATE_CONTAINER,
    "UpdateContainer": pb.UPDATE_CONTAINER,
    "PostUpdateContainer": pb.POST_UPDATE_CONTAINER,
    "StopContainer": pb.STOP_CONTAINER,
    "RemoveContainer": pb.REMOVE_CONTAINER,
}
_REQUESTS: Final = ("CreateContainer", "UpdateContainer")
"""The methods whose replies have changes. The other methods only report events."""
_LONGEST_TIMEOUT_SECONDS: Final = 600.0
_MAX_REPORTED_BYTES: Final = 32 << 20
"""The maximum size of the kept fields of all pods and containers of a node."""
_LONGEST_NAME: Final = 100
_FIRST_WITHOUT_DEADLOCK: Final = (0, 12, 1)
_VERSION: Final = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})")
_METHODS: Final = {event: method for method, event in _EVENTS.items() if method not in _REQUESTS}
"""The methods that a StateChange stands for."""
_MASK: Final = sum(1 << (event - 1) for event in _EVENTS.values())
T = TypeVar("T")

log = logging.getLogger(__name__)


class PluginCall:
    """One request to create or update a container, until its answer. `budget_seconds`: how long the
    answer may be Wait, from `started` (monotonic seconds) on. Of a container to create, `mounted`
    has the paths in the container where no further mount is possible, and `carried` reads the
    devices that the request names. `state`: what the plugin keeps for the call, None at first."""

    __slots__ = ("budget_seconds", "carried", "container", "mounted", "request", "started", "state")

    def __init__(
        self,
        container: NriContainer,
        request: CreateContainer | UpdateContainer,
        budget_seconds: float,
        mounted: frozenset[str] = frozenset(),
        carried: Callable[[], Carried] = Carried,
    ) -> None:
        self.container = container
        self.mounted = mounted
        self.carried = carried
        self.request = request
        self.started = time.monotonic()
        self.budget_seconds = budget_seconds
        self.state: object = None


class Plugin(Protocol):
    """The hooks of a plugin. No method may block: every container of the node would wait."""

    def synchronize(self, containers: Sequence[NriContainer]) -> Mapping[str, LinuxResources]:
        """The runtime reports all containers. Returns the changes to make, by container id."""
        ...

    def pod_announced(self, pod: PodAnnounced) -> None:
        """The pod's sandbox was created, and its containers are not yet."""
        ...

    def pod_removed(self, uid: str) -> None:
        """A sandbox of the pod was removed."""
        ...

    def create(self, call: PluginCall) -> Verdict:
        """Called for each container before it is created, and again while the answer is Wait."""
        ...

    def update(self, call: PluginCall) -> Verdict:
        """Called before a container is changed, and again while the answer is Wait."""
        ...

    def unhooked(
        self, method: str, call: PluginCall | None, reason: str, detail: str
    ) -> Refuse | None:
        """The answer to a request whose hook failed, that can't wait, or that can't be decoded
        (`call` is None then); None if it continues unchanged. `reason`: one of FailureReason."""
        ...

    def abandoned(self, call: PluginCall) -> None:
        """The session ended while the call was held."""
        ...

    def created(self, container: NriContainer) -> None: ...

    def updated(self, container: NriContainer) -> None: ...

    def ended(self, container: NriContainer) -> None:
        """The container was stopped or removed; called for each of the two, also for a container
        that was never created."""
        ...


class PluginStats:
    """Counters over all sessions."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.adjusted = 0
        self.refused = 0
        self.slowest_seconds = 0.0


class OpenCall(NamedTuple):
    """A call that the plugin decides, with the runtime's call to be answered."""

    call: PluginCall
    incoming: Incoming


class PluginService:
    """The service of one session. `held` has the session's calls that wait for an answer of the
    plugin. `synchronized` is called when the runtime has reported all containers, `answered` after
    the answer of a held call. A call may be held for half of the runtime's timeout."""

    def __init__(
        self,
        plugin: Plugin,
        stats: PluginStats,
        held: HeldCalls[OpenCall],
        synchronized: Callable[[], None],
        answered: Callable[[], None],
    ) -> None:
        self._plugin = plugin
        self._stats = stats
        self._held = held
        self._synchronized = synchronized
        self._answered = answered
        self.accepts_updates = False
        """Whether the runtime accepts updates of containers that it did not ask about."""
        self._budget_seconds = _DEFAULT_TIMEOUT_SECONDS / 2
        self._pods: dict[str, pb.PodSandbox] = {}
        self._containers: list[pb.Container] = []
        self._reported_bytes = 0

    def serve(self, incoming: Incoming) -> None:
        """Answers the call, or holds it."""
        method = incoming.method
        if incoming.service != SERVICE:
            incoming.refuse(Code.UNIMPLEMENTED, f"unknown service {incoming.service[:100]}")
            return
        try:
            if method == "StateChange":  # what runtimes before NRI 0.12 send for most events
                change = pb.StateChangeEvent.FromString(incoming.payload)
                request = pb.EventRequest(pod=change.pod, container=change.container)
                method = _METHODS.get(change.event, "")
            elif method in _EVENTS:
                request = pb.EventRequest.FromString(incoming.payload)
            else:
                self._set_up(incoming)
                return
        except DecodeError as error:
            self._unread(incoming, str(error))
            return
        self._stats.calls[method or "other"] += 1
        if method in _REQUESTS:
            self._open(method, request, incoming)
            return
        self._guarded(method, lambda: self._report(method, request))
        incoming.answer(b"")

    def finish(self) -> None:
        """Ends every held call by its failure policy, before the plugin ends the session: the
        runtime would let them all pass."""
        for call, incoming in self._held.release_all():
            refused = self._unhooked(
                incoming.method, call, FailureReason.TIMEOUT, "the plugin ends"
            )
            self._end(incoming, refused, b"")

    def close(self) -> None:
        """The session is over."""
        for call, _ in self._held.release_all():
            self._guarded("abandoned", partial(self._plugin.abandoned, call))

    def _set_up(self, incoming: Incoming) -> None:
        """Answers the calls at the beginning and the end of a session. Raises DecodeError."""
        if incoming.method == "Configure":
            configure = pb.ConfigureRequest.FromString(incoming.payload)
            timeout = configure.request_timeout / 1000 or _DEFAULT_TIMEOUT_SECONDS
            timeout = min(max(timeout, 0.0), _LONGEST_TIMEOUT_SECONDS)
            self._budget_seconds = timeout / 2
            self.accepts_updates = accepts_updates(configure.NRI_version)
            log.info(
                "%s %s configures the plugin (NRI %s, %g s for a call)",
                configure.runtime_name[:_LONGEST_NAME],
                configure.runtime_version[:_LONGEST_NAME],
                configure.NRI_version[:_LONGEST_NAME] or "before 0.12",
                timeout,
            )
            incoming.answer(pb.ConfigureResponse(events=_MASK).SerializeToString())
        elif incoming.method == "Synchronize":
            self._synchronize(incoming)
        elif incoming.method == "Shutdown":
            incoming.answer(b"")
        else:
            incoming.refuse(Code.UNIMPLEMENTED, f"{incoming.method[:100]} is not implemented")

    def _synchronize(self, incoming: Incoming) -> None:
        """The runtime reports the pods and containers of the node in messages of 4 MiB. Only the
        fields that `messages.reported` reads are kept."""
        part = pb.SynchronizeRequest.FromString(incoming.payload)
        new_pods = [messages.trimmed_sandbox(each) for each in part.pods]
        new_containers = [messages.trimmed_container(each) for each in part.containers]
        self._reported_bytes += sum(each.ByteSize() for each in (*new_pods, *new_containers))
        if self._reported_bytes > _MAX_REPORTED_BYTES:
            self._pods, self._containers, self._reported_bytes = {}, [], 0
            maximum = f"{_MAX_REPORTED_BYTES} bytes are the maximum"
            incoming.refuse(Code.RESOURCE_EXHAUSTED, f"too many pods and containers: {maximum}")
            return
        self._pods |= {each.id: each for each in new_pods}
        self._containers += new_containers
        if part.more:
            incoming.answer(pb.SynchronizeResponse(more=True).SerializeToString())
            return
        pods, self._pods = self._pods, {}
        received, self._containers = self._containers, []
        self._reported_bytes = 0
        containers = [messages.reported(each, pods.get(each.pod_sandbox_id)) for each in received]
        changes = self._guarded("Synchronize", lambda: self._plugin.synchronize(containers)) or {}
        updates = [messages.update(each, changed) for each, changed in changes.items()]
        incoming.answer(pb.SynchronizeResponse(update=updates).SerializeToString())
        self._synchronized()

    def _report(self, method: str, request: pb.EventRequest) -> None:
        if method == "RunPodSandbox":
            self._plugin.pod_announced(messages.pod(request.pod))
            return
        if method == "RemovePodSandbox":
            self._plugin.pod_removed(messages.pod(request.pod).uid)
            return
        container = messages.reported(request.container, request.pod)
        if method == "PostCreateContainer":
            self._plugin.created(container)
        elif method == "PostUpdateContainer":
            self._plugin.updated(container)
        elif method:
            self._plugin.ended(container)

    def _open(self, method: str, event: pb.EventRequest, incoming: Incoming) -> None:
        container = messages.reported(event.container, event.pod)
        if method == "CreateContainer":
            pod, name = messages.pod(event.pod), event.container.name
            request = CreateContainer(pod, name, container.requested)
            mounted = notice.taken_paths(
                (each.destination, "ro" in each.options) for each in event.container.mounts
            )
            carried = partial(messages.carried, event.container, event.pod)
            call = PluginCall(container, request, self._budget_seconds, mounted, carried)
        else:
            change = UpdateContainer(
                container.id,
                messages.requested_resources(event.linux_resources),
                ContainerName(
                    event.pod.namespace, event.pod.name, event.pod.uid, event.container.name
                ),
            )
            call = PluginCall(container, change, self._budget_seconds)
        self._ask(OpenCall(call, incoming))

    def _unread(self, incoming: Incoming, detail: str) -> None:
        """Answers a call that can't be decoded: for calls about containers the failure policy
        decides."""
        if incoming.method in _REQUESTS:
            self._stats.errors[incoming.method] += 1
            refused = self._unhooked(incoming.method, None, FailureReason.MALFORMED, detail)
            self._end(incoming, refused, b"")
        else:
            incoming.refuse(Code.INVALID_ARGUMENT, f"{incoming.method[:100]}: {detail}")

    def _ask(self, open_call: OpenCall) -> None:
        call, incoming = open_call
        try:
            answer = self._answer(call)
        except Exception as error:  # the guard around a hook
            self._stats.errors[incoming.method] += 1
            log.exception("the hook of %s failed", incoming.method)
            detail = f"{type(error).__name__}: {error}"
            answer = (
                self._unhooked(incoming.method, call, FailureReason.INTERNAL_ERROR, detail)
                or UNCHANGED
            )
        if isinstance(answer, Wait):
            ask = partial(self._ask_again, open_call)
            if self._held.hold(open_call, ask, len(incoming.payload)):
                return
            detail = "other held requests use all the memory"
            answer = (
                self._unhooked(incoming.method, call, FailureReason.TIMEOUT, detail) or UNCHANGED
            )
        self._held.release(open_call)
        took = time.monotonic() - call.started
        self._stats.slowest_seconds = max(self._stats.slowest_seconds, took)
        if isinstance(answer, Refuse):
            self._end(incoming, answer, b"")
            return
        self._stats.adjusted += answer != UNCHANGED
        self._end(incoming, None, _response(call, answer).SerializeToString())

    def _unhooked(
        self, method: str, call: PluginCall | None, reason: str, detail: str
    ) -> Refuse | None:
        try:
            return self._plugin.unhooked(method, call, reason, detail)
        except Exception as error:  # the guard around a hook
            self._stats.errors[method] += 1
            log.exception("the failure policy of %s failed", method)
            return undecided(error)

    def _ask_again(self, open_call: OpenCall) -> None:
        self._ask(open_call)
        self._answered()

    def _answer(self, call: PluginCall) -> Verdict:
        if isinstance(call.request, CreateContainer):
            return self._plugin.create(call)
        return self._plugin.update(call)

    def _end(self, incoming: Incoming, refused: Refuse | None, payload: bytes) -> None:
        if refused is None:
            incoming.answer(payload)
            return
        self._stats.refused += 1
        incoming.refuse(Code(refused.code), refused.message)

    def _guarded(self, method: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Exception:  # no answer depends on it
            self._stats.errors[method] += 1
            log.exception("the hook of %s failed", method)
            return None


def _response(call: PluginCall, changes: Changes) -> Message:
    if isinstance(call.request, CreateContainer):
        return pb.CreateContainerResponse(adjust=messages.adjustment(changes, call.mounted))
    updates = []
    if changes != UNCHANGED:
        updates.append(messages.update(call.container.id, changes.resources))
    return pb.UpdateContainerResponse(update=updates)


def accepts_updates(nri_version: str) -> bool:
    """Before NRI 0.12.1 an update by a plugin can cause a deadlock with another event in the
    runtime, which then can't create or remove any pod."""
    numbers = _VERSION.match(nri_version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= _FIRST_WITHOUT_DEADLOCK
