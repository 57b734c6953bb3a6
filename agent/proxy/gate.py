"""The relay's gate: joins requests, snapshot, grants and doorbell; asks the hooks what to do."""

from __future__ import annotations

import time

from agent.hooks import cpuset, requests
from agent.hooks.cpuset import Give, Grant, Keep, Wait
from agent.hooks.wire import WireError
from agent.model import notice
from agent.model.cpuset import CpuSet
from agent.model.doorbell import (
    ContainerComes,
    ContainerFailed,
    Created,
    Look,
    PodComes,
    PodFailed,
    Resized,
    Ring,
)
from agent.model.snapshot import Snapshot
from agent.model.wanted import NOTHING
from agent.proxy.bell import Bell
from agent.proxy.grants import Grants
from agent.proxy.snapshots import SnapshotFile
from agent.rpc.grpc import Code
from agent.runtime.gate import Call, Forward, Hold, Refuse, Replace, Verdict

_SERVICE = b"/runtime.v1.RuntimeService/"
RUN = _SERVICE + b"RunPodSandbox"
CREATE = _SERVICE + b"CreateContainer"
UPDATE = _SERVICE + b"UpdateContainerResources"

RING_AGAIN_SECONDS = 0.1


class _Creation:
    """One CreateContainer from its arrival to its reply."""

    def __init__(self, request: requests.CreateContainer) -> None:
        self.request = request
        self.pod_title = f"pod {request.pod.namespace}/{request.pod.name}"
        self.grant: int | None = None
        self.kept: tuple[str, ...] = ()
        self.waiting = _Waiting()
        self.announced = False
        """Whether the agent holds CPUs for the container alone."""

    def failed(self) -> Ring:
        """What the agent hears when it does not come to be."""
        pod = self.request.pod
        return ContainerFailed(pod.uid, self.request.container_name) if self.announced else Look()


class _Waiting:
    """A held call, which rings the agent again and again but not at every question."""

    def __init__(self) -> None:
        self._rung_at = 0.0

    def ring(self, bell: Bell, ring: Ring) -> None:
        now = time.monotonic()
        if now - self._rung_at >= RING_AGAIN_SECONDS:
            self._rung_at = now
            bell.ring(ring)


class _Update:
    """One UpdateContainerResources from its arrival to its reply."""

    def __init__(self, request: requests.UpdateContainer) -> None:
        self.request = request
        self.waiting = _Waiting()


class CpusetGate:
    """Holds a creation that waits for the agent for at most `hold_seconds`. `state_dir`: where the
    agent keeps what containers are told."""

    methods = frozenset({RUN, CREATE, UPDATE})

    def __init__(
        self,
        snapshots: SnapshotFile,
        bell: Bell,
        grants: Grants,
        hold_seconds: float,
        state_dir: str,
    ) -> None:
        self._snapshots = snapshots
        self._bell = bell
        self._grants = grants
        self._hold_seconds = hold_seconds
        self._state_dir = state_dir
        self.timed_out = 0

    def request(self, call: Call, message: bytes) -> Verdict:
        """Raises WireError for a message that is no protobuf; the relay lets that one pass."""
        snapshot = self._snapshots.current()
        if snapshot is not None:
            self._grants.seen(snapshot)
        if call.path == CREATE:
            return self._create(call, message, snapshot)
        if call.path == UPDATE:
            return self._update(call, message, snapshot)
        pod = requests.run_pod_sandbox(message)
        call.state = pod
        self._bell.ring(pod)
        return Forward()

    def reply(self, call: Call, message: bytes | None) -> None:
        """Tells the agent what came of it."""
        made = _made(message)
        if isinstance(call.state, PodComes):
            self._bell.ring(Look() if made else PodFailed(call.state.uid))
        elif isinstance(call.state, _Creation) and call.state.grant is not None:
            ring = call.state.failed()
            if made:
                self._grants.answered(call.state.grant, made)
                ring = Created(made, call.state.request.asked, call.state.kept)
            else:
                self._grants.failed(call.state.grant)
            self._bell.ring(ring)
        elif isinstance(call.state, _Update) and message is not None:
            request, snapshot = call.state.request, self._snapshots.current()
            if snapshot is not None and snapshot.cpu_policy != "none" and request.asked.shares:
                self._bell.ring(Resized(request.container_id, request.asked))

    def gone(self, call: Call) -> None:
        """A held call holds nothing of ours, but the agent may hold CPUs for it."""
        if isinstance(call.state, _Creation) and call.state.announced:
            self._bell.ring(call.state.failed())

    def _create(self, call: Call, message: bytes, snapshot: Snapshot | None) -> Verdict:
        if not isinstance(call.state, _Creation):
            call.state = _Creation(requests.create_container(message))
        creation = call.state
        request, grants = creation.request, self._grants.all()
        answer = cpuset.create(request, snapshot, grants)
        if isinstance(answer, Wait) and self._late(call):
            self.timed_out += 1
            answer = cpuset.last_resort(request, snapshot, grants, answer.reason)
            if isinstance(answer, Wait):
                if creation.announced:
                    self._bell.ring(creation.failed())
                waited = f"no CPUs after {self._hold_seconds:g} s"
                return Refuse(Code.UNAVAILABLE, f"{creation.pod_title}: {waited}: {answer.reason}")
        if isinstance(answer, Wait):
            ring: Ring = request.pod
            if snapshot is not None and cpuset.local_request(request, snapshot):
                creation.announced = True
                ring = ContainerComes(request.pod, request.container_name, request.asked.shares)
            creation.waiting.ring(self._bell, ring)
            return Hold()
        given = answer.wanted if isinstance(answer, Give) else NOTHING
        cpus = _asked(request.asked.cpuset if given.cpuset is None else given.cpuset)
        creation.grant = self._grants.open(Grant(request.pod.uid, creation.pod_title, cpus, given))
        creation.kept = cpuset.kept(request, answer)
        if isinstance(answer, Keep):
            return Forward()
        told_in = ""
        if given.exclusive and snapshot is not None and cpuset.is_told(request, snapshot):
            folder = notice.folder(request.pod.uid, request.container_name)
            told_in = f"{self._state_dir}/{folder}"
        return _verdict(cpuset.rewrite_create(message, request, answer, told_in))

    def _update(self, call: Call, message: bytes, snapshot: Snapshot | None) -> Verdict:
        if not isinstance(call.state, _Update):
            call.state = _Update(requests.update_container(message))
        request = call.state.request
        answer = cpuset.update(request, snapshot, self._grants.of(request.container_id))
        if isinstance(answer, Wait):
            if not self._late(call):
                call.state.waiting.ring(self._bell, Look())
                return Hold()
            self.timed_out += 1
            answer = cpuset.without_owners(request, snapshot)
        if not isinstance(answer, Give):
            return Forward()
        return _verdict(cpuset.rewrite_update(message, request, answer))

    def _late(self, call: Call) -> bool:
        return time.monotonic() - call.started >= self._hold_seconds


def _verdict(message: bytes | None) -> Verdict:
    return Forward() if message is None else Replace(message)


def _made(reply: bytes | None) -> str:
    """The id in a reply; "" where there is none, or none that can be read: then the creation must
    count as answered all the same, or owners would wait for it for ever."""
    try:
        return requests.created_id(reply or b"")
    except WireError:
        return ""


def _asked(requested: str) -> CpuSet | None:
    """What an unchanged request may end up on: its cpuset, or anything."""
    try:
        return CpuSet.parse(requested) or None
    except ValueError:
        return None
