"""The relay's gate: CRI messages to admission, and its answers back into the messages."""

from __future__ import annotations

from functools import partial
from typing import Final

from agent.hooks import cri
from agent.hooks.admission import Admission
from agent.hooks.requests import Changes, Creation, SandboxCreation, Unread, Update, Waiting
from agent.model.settings.failure_policy import CREATE, RUN, UPDATE, UPDATE_SANDBOX, Deadlines
from agent.model.verdict import FailureReason, Refuse, Wait
from agent.model.wire import WireError
from agent.relay.gate import Call, Forward, GateVerdict, Replace

_START: Final = "StartContainer"
_REMOVE: Final = "RemoveContainer"
_ENDINGS: Final = ("StopContainer", _REMOVE, "StopPodSandbox", "RemovePodSandbox")
_SERVICES: Final = ("runtime.v1.RuntimeService", "runtime.v1alpha2.RuntimeService")

METHODS: Final = {
    f"/{service}/{method}".encode(): method
    for service in _SERVICES
    for method in (RUN, CREATE, UPDATE, UPDATE_SANDBOX, _START, *_ENDINGS)
}
"""By path."""


class _Ending:
    """A container or sandbox that is stopped or removed, or a sandbox that changes: nothing is
    rewritten, and the agent reconciles when the call is done. `removed`: the container that does
    not exist then."""

    def __init__(self, removed: str) -> None:
        self.removed = removed


class _Starting:
    """A container that is being started: nothing is rewritten, and owners of CPUs wait while it may
    get a cpuset that the agent has changed meanwhile. `number`: that of admission."""

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
            call.state = _Ending(cri.removed_id(message) if method == _REMOVE else "")
        return Forward()

    def unhooked(self, call: Call, reason: str, detail: str) -> Forward | Refuse:
        """By the policy of hook and class; a call whose pod could not be read has no class."""
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
        elif isinstance(call.state, _Ending) and message is not None:
            self._admission.removed(call.state.removed)
            self._admission.report_change()

    def abandoned(self, call: Call) -> None:
        """A held call has no grant, but the agent may hold CPUs for it."""
        if isinstance(call.state, SandboxCreation):
            self._admission.pod_created(call.state.pod, made=False)
        elif isinstance(call.state, Creation):
            self._admission.abandoned(call.state)

    def _run(self, call: Call, message: bytes) -> GateVerdict:
        if not isinstance(call.state, SandboxCreation):
            call.state = SandboxCreation(cri.run_pod_sandbox(message), self._waiting(call))
        answer = self._admission.create_sandbox(call.state)
        return answer if isinstance(answer, Wait) else Forward()

    def _create(self, call: Call, message: bytes) -> GateVerdict:
        if not isinstance(call.state, Creation):
            call.state = Creation(cri.create_container(message), self._waiting(call))
        answer = self._admission.create(call.state, partial(cri.carried, message))
        if not isinstance(answer, Changes):
            return answer
        return _verdict(cri.create_request_with(message, answer))

    def _update(self, call: Call, message: bytes) -> GateVerdict:
        if not isinstance(call.state, Update):
            call.state = Update(cri.update_container(message), self._waiting(call))
        answer = self._admission.update(call.state)
        if not isinstance(answer, Changes):
            return answer
        return _verdict(cri.update_request_with(message, answer))

    def _waiting(self, call: Call) -> Waiting:
        return Waiting(call.started, self._deadlines.of(METHODS[call.path]))


def _verdict(message: bytes | None) -> GateVerdict:
    return Forward() if message is None else Replace(message)


def _made(reply: bytes | None) -> str:
    """The id in a reply; "" for no reply, and for an unreadable one: the creation must count as
    answered then, or owners would wait for it for ever."""
    try:
        return cri.created_id(reply or b"")
    except WireError:
        return ""
