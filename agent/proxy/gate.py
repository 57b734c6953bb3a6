"""The relay's gate: joins requests, snapshot, grants and doorbell; asks the hooks what to do."""

from __future__ import annotations

import time
from collections.abc import Collection

from agent.hooks import cpuset, requests
from agent.hooks.cpuset import Answer, Give, Grant, Keep, Wait
from agent.hooks.wire import WireError
from agent.model import notice
from agent.model.cpuset import CpuSet
from agent.model.doorbell import (
    ContainerComes,
    Created,
    Look,
    PodComes,
    PodFailed,
    Resized,
    Ring,
)
from agent.model.failurepolicy import CREATE, RUN, UPDATE, Deadlines, FailurePolicies
from agent.model.qos import QoS
from agent.model.snapshot import Snapshot
from agent.model.wanted import NOTHING
from agent.proxy.bell import Bell
from agent.proxy.calls import Creation, Ending, Unread, Update
from agent.proxy.grants import Grants
from agent.proxy.methods import METHODS, REMOVE
from agent.proxy.outcomes import Outcomes
from agent.proxy.snapshots import SnapshotFile
from agent.rpc.grpc import Code
from agent.runtime.gate import Call, Forward, Hold, Refuse, Replace, Verdict


class CpusetGate:
    """Holds a call that waits for the agent until its hook's deadline, then its policy speaks.
    `state_dir`: where the agent keeps what containers are told."""

    methods = frozenset(METHODS)

    def __init__(
        self,
        snapshots: SnapshotFile,
        bell: Bell,
        grants: Grants,
        deadlines: Deadlines,
        policies: FailurePolicies,
        state_dir: str,
    ) -> None:
        self._snapshots = snapshots
        self._bell = bell
        self._grants = grants
        self._deadlines = deadlines
        self._state_dir = state_dir
        self.outcomes = Outcomes(policies)

    def request(self, call: Call, message: bytes) -> Verdict:
        """Raises WireError for a message that is no protobuf."""
        snapshot = self._snapshots.current()
        if snapshot is not None:
            self._grants.seen(snapshot)
        method = METHODS[call.path]
        if method == CREATE:
            return self._create(call, message, snapshot)
        if method == UPDATE:
            return self._update(call, message, snapshot)
        if method == RUN:
            call.state = pod = requests.run_pod_sandbox(message)
            self._bell.ring(pod)
        else:
            call.state = Ending(requests.removed_id(message) if method == REMOVE else "")
        return Forward()

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        """By the policy of hook and class; a call whose pod could not be read has no class."""
        hook, creation = METHODS[call.path], call.state
        qos, title = None, "a container that could not be looked into"
        if isinstance(creation, Creation):
            qos, title = creation.qos, creation.pod_title
            if creation.announced:
                self._bell.ring(creation.failed())
        if self.outcomes.fails(hook, qos, reason, f"{title}: {detail}"):
            return Refuse(Code.INTERNAL, f"{hook}: {title}: {detail}")
        if hook == CREATE:
            call.state = Unread(self._grants.open(Grant("", title, None)))
        return Forward()

    def reply(self, call: Call, message: bytes | None) -> None:
        """Tells the agent what came of it."""
        state, made = call.state, _made(message)
        if isinstance(state, PodComes):
            self._bell.ring(Look() if made else PodFailed(state.uid))
        elif isinstance(state, Creation | Unread):
            if state.grant is None:
                return
            ring: Ring = Look()
            if made:
                self._grants.answered(state.grant, made)
            else:
                self._grants.failed(state.grant)
            if isinstance(state, Creation):
                ring = Created(made, state.request.asked, state.kept) if made else state.failed()
            self._bell.ring(ring)
        elif isinstance(state, Update) and message is not None:
            request, snapshot = state.request, self._snapshots.current()
            if snapshot is not None and snapshot.cpu_policy != "none" and request.asked.shares:
                self._bell.ring(Resized(request.container_id, request.asked))
        elif isinstance(state, Ending) and message is not None:
            self._grants.gone(state.removed)
            self._bell.ring(Look())

    def gone(self, call: Call) -> None:
        """A held call holds nothing of ours, but the agent may hold CPUs for it."""
        if isinstance(call.state, Creation) and call.state.announced:
            self._bell.ring(call.state.failed())

    def _create(self, call: Call, message: bytes, snapshot: Snapshot | None) -> Verdict:
        if not isinstance(call.state, Creation):
            call.state = Creation(requests.create_container(message))
        creation = call.state
        request, grants = creation.request, self._grants.all()
        answer = cpuset.create(request, snapshot, grants)
        if isinstance(answer, Wait) and self._late(call):
            answer = self._last_resort(creation, snapshot, grants, answer.reason)
            if isinstance(answer, Wait):
                if creation.announced:
                    self._bell.ring(creation.failed())
                return Refuse(Code.UNAVAILABLE, answer.reason)
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

    def _last_resort(
        self,
        creation: Creation,
        snapshot: Snapshot | None,
        grants: Collection[Grant],
        reason: str,
    ) -> Answer:
        """The answer when the deadline has passed; Wait for an error, with its text."""
        if snapshot is not None and cpuset.local_request(creation.request, snapshot):
            creation.qos = QoS.LSR
        waited = f"{creation.pod_title}: no CPUs after {self._deadlines.of(CREATE):g} s"
        if self.outcomes.fails(CREATE, creation.qos, "late", f"{waited}: {reason}"):
            return Wait(f"{waited}: {reason}")
        answer = cpuset.last_resort(creation.request, snapshot, grants)
        if isinstance(answer, Wait):
            answer = Wait(f"{waited}: {answer.reason}")
            self.outcomes.refused(CREATE, creation.qos, "no_cpu", answer.reason)
        return answer

    def _update(self, call: Call, message: bytes, snapshot: Snapshot | None) -> Verdict:
        if not isinstance(call.state, Update):
            call.state = Update(requests.update_container(message))
        request = call.state.request
        answer = cpuset.update(request, snapshot, self._grants.of(request.container_id))
        if isinstance(answer, Wait):
            if not self._late(call):
                call.state.waiting.ring(self._bell, Look())
                return Hold()
            waited = f"container {request.container_id}: {answer.reason}"
            if self.outcomes.fails(UPDATE, None, "late", waited):
                return Refuse(Code.UNAVAILABLE, waited)
            answer = cpuset.without_owners(request, snapshot)
        if not isinstance(answer, Give):
            return Forward()
        return _verdict(cpuset.rewrite_update(message, request, answer))

    def _late(self, call: Call) -> bool:
        return time.monotonic() - call.started >= self._deadlines.of(METHODS[call.path])


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
