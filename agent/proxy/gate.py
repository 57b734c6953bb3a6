"""The relay's gate: translates CRI messages for admission, and its answers into the messages."""

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
    """A call that stops or removes a container or sandbox, or updates a sandbox. It is forwarded
    unchanged, and the agent is notified of its result. `removed`: the id of the removed container,
    "" for other calls."""

    def __init__(self, removed: str) -> None:
        self.removed = removed


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
            call.state = _Ending(cri.removed_id(message) if method == _REMOVE else "")
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
        elif isinstance(call.state, _Ending) and message is not None:
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
    """The id in a reply; "" without a reply. Also "" for a reply that can't be decoded: otherwise
    the creation would stay in progress, and owners would wait for it forever."""
    try:
        return cri.created_id(reply or b"")
    except WireError:
        return ""
