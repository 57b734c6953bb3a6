"""The relay's gate: CRI messages to admission, and what it says back into them."""

from __future__ import annotations

from agent.hooks import requests, rewrites
from agent.hooks.wire import WireError
from agent.model.doorbell import PodComes
from agent.proxy.admission import Admission, Creation, Held, Refused, Update, Waiting
from agent.proxy.bell import Bell
from agent.proxy.grants import Grants
from agent.proxy.snapshots import SnapshotFile
from agent.rpc.grpc import Code
from agent.runtime.gate import Call, Forward, Hold, Refuse, Replace, Verdict

_SERVICE = b"/runtime.v1.RuntimeService/"
RUN = _SERVICE + b"RunPodSandbox"
CREATE = _SERVICE + b"CreateContainer"
UPDATE = _SERVICE + b"UpdateContainerResources"


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
        self._admission = Admission(snapshots, bell, grants, state_dir)
        self._hold_seconds = hold_seconds

    @property
    def timed_out(self) -> int:
        """Calls that waited in vain for the agent."""
        return self._admission.timed_out

    def request(self, call: Call, message: bytes) -> Verdict:
        """Raises WireError for a message that is no protobuf; the relay lets that one pass."""
        if call.path == CREATE:
            return self._create(call, message)
        if call.path == UPDATE:
            return self._update(call, message)
        pod = requests.run_pod_sandbox(message)
        call.state = pod
        self._admission.pod_comes(pod)
        return Forward()

    def reply(self, call: Call, message: bytes | None) -> None:
        """Tells the agent what came of it."""
        if isinstance(call.state, PodComes):
            self._admission.pod_made(call.state, made=bool(_made(message)))
        elif isinstance(call.state, Creation):
            self._admission.created(call.state, _made(message))
        elif isinstance(call.state, Update) and message is not None:
            self._admission.updated(call.state)

    def gone(self, call: Call) -> None:
        """A held call holds nothing of ours, but the agent may hold CPUs for it."""
        if isinstance(call.state, Creation):
            self._admission.abandoned(call.state)

    def _create(self, call: Call, message: bytes) -> Verdict:
        if not isinstance(call.state, Creation):
            call.state = Creation(requests.create_container(message), self._waiting(call))
        answer = self._admission.create(call.state)
        if isinstance(answer, Held):
            return Hold()
        if isinstance(answer, Refused):
            return Refuse(Code.UNAVAILABLE, answer.why)
        return _verdict(rewrites.create_container(message, answer))

    def _update(self, call: Call, message: bytes) -> Verdict:
        if not isinstance(call.state, Update):
            call.state = Update(requests.update_container(message), self._waiting(call))
        answer = self._admission.update(call.state)
        if isinstance(answer, Held):
            return Hold()
        return _verdict(rewrites.update_container(message, answer))

    def _waiting(self, call: Call) -> Waiting:
        return Waiting(call.started, self._hold_seconds)


def _verdict(message: bytes | None) -> Verdict:
    return Forward() if message is None else Replace(message)


def _made(reply: bytes | None) -> str:
    """The id in a reply; "" where there is none, or none that can be read: then the creation must
    count as answered all the same, or owners would wait for it for ever."""
    try:
        return requests.created_id(reply or b"")
    except WireError:
        return ""
