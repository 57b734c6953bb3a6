"""Passes of the real agent and calls through real frontends in random orders, with each event as a
step of the model.

The driver is kubelet, runtime and kernel. It chooses its next event by the model's state, also in
the middle of a pass: before the pass blocks dropped owners, writes a cgroup, updates the runtime or
publishes. What agent and frontends do is recorded at the same places. A difference is an error: a
step that the model does not have, a creation that only one of them admits, other CPUs, another
snapshot, or another number of waiting notifications.

The model has more: refused writes, reboots, and containers that are removed during a pass (the code
then blocks an owner until the next pass)."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import msgspec

from agent.cgroup.hierarchy import Hierarchy
from agent.cri.client import RuntimeContainer, Sandbox, VerboseStatus
from agent.hooks import cpuset
from agent.hooks.requests import Changes, Creation, SandboxCreation, Waiting
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import SessionEnded
from agent.model.pod.pods import ContainerState
from agent.model.verdict import Code, Wait
from agent.node.publisher import Publisher
from agent.node.reconcile import Reconciler
from agent.node.runtime_view import RuntimeView
from agent.rpc.grpc import RpcError
from tests.hooks.admission_harness import pod
from tests.node.world import ListedRuntime, World
from tests.protocol.explorer import overlap
from tests.protocol.model import (
    LISTED,
    Age,
    Bounds,
    Decided,
    Inbox,
    Model,
    Pass,
    Phase,
    Stage,
    State,
)
from tests.protocol.node import SECONDS, Datagrams, Frontend, creation

CLAIMS: Final = ("0", "1", "", "")
"""By pod, the CPUs that it claims; "" for a sharer."""
_BOUNDS: Final = Bounds(4, tuple(CpuSet.parse(each).mask for each in CLAIMS), faults=1 << 30)
_ALL: Final = "0-3"
_POD_GROUPS: Final = "kubepods/burstable"
_MOST_IN_A_PASS: Final = 3
"""Events at one place of a pass."""


class DeviationError(Exception):
    """Model and code differ. The message has the last steps."""


class _AgentKilled(BaseException):
    """The agent is killed in the middle of a pass; no code catches it."""


class _Runtime(ListedRuntime):
    """Changes the cpusets of listed containers. `before` and `after` are called with an update."""

    def __init__(self, before: Callable[[], None], after: Callable[[str], None]) -> None:
        super().__init__()
        self._before, self._after = before, after

    def container_status(self, container_id: str, *, carriers: bool = False) -> VerboseStatus:
        self._check(container_id)
        return super().container_status(container_id, carriers=carriers)

    def update(self, container_id: str, resources: LinuxResources) -> None:
        self._before()
        try:
            self._check(container_id)
            self.set_resources(container_id, cpuset=resources.cpuset)
        finally:
            self._after(container_id)

    def _check(self, container_id: str) -> None:
        if all(each.id != container_id for each in self.listed_containers):
            raise RpcError(Code.NOT_FOUND, "the container was removed")


class _Follower:
    """The model's state while the code runs. Its methods raise DeviationError."""

    def __init__(self) -> None:
        self.model = Model(_BOUNDS)
        self.state = self.model.first
        self.names: list[str] = []

    def step(self, name: str) -> None:
        after = next((after for each, after in self.model.steps(self.state) if each == name), None)
        self.names.append(name)
        if after is None:
            raise self.deviation("the model has no such step here")
        self.state = after
        if problem := overlap(after):
            raise self.deviation(problem)

    def deviation(self, problem: str) -> DeviationError:
        return DeviationError(f"{problem}, after: {', '.join(self.names[-40:])}")

    def write(self, number: int) -> None:
        """The code writes the cpuset of a container."""
        doing = self.state.running_pass
        if doing is not None and number in doing.writes:
            # The model has one order of the writes that do not depend on each other.
            ahead = doing.writes[: doing.writes.index(number)]
            if len({self._kind(doing, each) for each in (*ahead, number)}) == 1:
                writes = (number, *(each for each in doing.writes if each != number))
                doing = msgspec.structs.replace(doing, writes=writes)
                self.state = msgspec.structs.replace(self.state, running_pass=doing)
        self.forward(Stage.ROOM, number)
        self.step(f"write {number}")

    def _kind(self, doing: Pass, number: int) -> tuple[bool, bool]:
        wanted = self.model.wanted(doing.decided, number)
        if doing.running >> number & 1:
            return True, bool(wanted & ~self.state.pods[number].kernel)
        return False, bool(doing.decided.owned[number])

    def forward(self, last: Stage, number: int | None = None) -> None:
        """Takes the stages before the stage `last`, or before its write of `number`. Writes that
        the code skips may change nothing."""
        while (doing := self.state.running_pass) is not None:
            stage = doing.stages[0]
            if stage is last and number is None:
                return
            if stage is Stage.ROOM and doing.writes:
                if doing.writes[0] == number:
                    return
                before = _cpus(self.state)
                self.step(f"write {doing.writes[0]}")
                if _cpus(self.state) != before:
                    raise self.deviation("the code does not make this write")
            elif stage is Stage.JOURNAL or (stage is Stage.ROOM and number is None):
                self.step("journal" if stage is Stage.JOURNAL else "room")
            else:
                break
        raise self.deviation(f"the code writes {number}, or skips {last.name}")


def _cpus(state: State) -> list[tuple[int, int]]:
    return [(each.stored if each.phase in LISTED else 0, each.kernel) for each in state.pods]


class _Call(NamedTuple):
    """A call in progress."""

    frontend: Frontend
    state: Any
    """What the frontend keeps of it."""


class Driver:
    """`seed`: of the order of events."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._folder = folder
        self._episodes = itertools.count()
        self._containers = itertools.count(1)
        self.names: list[str] = []
        """Of all steps until here."""
        self._begin()

    def _begin(self) -> None:
        """A node after its first start."""
        self.world = World(self._folder / f"{next(self._episodes)}", cores=_BOUNDS.cpus)
        self.runtime = self.world.runtime = _Runtime(self._between, self._updated)
        for group in ("kubepods", _POD_GROUPS):
            self.world.group(group, _ALL)
        self.follower = _Follower()
        self.datagrams = Datagrams()
        self.datagrams.close()
        self.agent: Reconciler | None = None
        self._in_pass = False
        self.frontend = Frontend(self.world, self.datagrams)
        self._other: Frontend | None = None
        self._ended_sessions: list[SessionEnded] = []
        self._calls: dict[int, _Call] = {}
        self._made: dict[int, tuple[Sandbox, RuntimeContainer | None]] = {}
        self._read: dict[int, str] = {}

    @property
    def _state(self) -> State:
        return self.follower.state

    def run(self, steps: int) -> None:
        """Raises DeviationError."""
        with self._recorded():
            while len(self.names) + len(self.follower.names) < steps:
                if all(each.phase is Phase.GONE for each in self._state.pods):
                    self._run_pass()
                    self._end()
                    self._begin()
                self._any_event()
        self._end()

    def _end(self) -> None:
        self.names += self.follower.names
        for each in (self.frontend, self._other):
            if each is not None:
                each.end()
        shutil.rmtree(self.world.cpuset.parent)

    def _any_event(self) -> None:
        if self._random.random() < (0.4 if self.datagrams.waiting else 0.1):
            self._run_pass()
        else:
            self._event()
        self._compare()

    def _between(self) -> None:
        """Events in the middle of a pass."""
        for _ in range(self._random.randrange(_MOST_IN_A_PASS + 1)):
            self._event()
            self._compare()

    def _event(self) -> None:
        chance = self._random.random()
        if chance < 0.01 and self.agent is not None:
            self._kill_agent()
        elif chance < 0.03 and not any(each.orphan for each in self._state.pods):
            self._replace_frontend(killed=self._random.random() < 0.5)
        else:
            self._pod_event(self._random.randrange(len(CLAIMS)))

    # Kubelet and runtime

    def _pod_event(self, number: int) -> None:
        phase = self._state.pods[number].phase
        fails = self._random.random() < 0.1
        if phase is Phase.NEW:
            self._run_sandbox(number)
        elif phase is Phase.SANDBOX and self._random.random() < 0.5:
            self._sandbox_ends(number, made=not fails)
        elif phase is Phase.READY:
            uid = f"p{number}"
            call = creation(uid, "LSE" if CLAIMS[number] else "LS", CLAIMS[number])
            self._calls[number] = _Call(self.frontend, call)
            self.follower.step(f"create {number}")
        elif phase is Phase.HELD:
            self._ask(number, late=self._random.random() < 0.05)
        elif phase is Phase.SENT:
            self._creation_ends(number, made=not fails)
        elif phase is Phase.CREATED:
            self._start(number)
        elif phase is Phase.STARTING:
            self._start_ends(number)
        elif phase is Phase.RUNNING and self._random.random() < 0.05 and not self._in_pass:
            self._remove(number)

    def _run_sandbox(self, number: int) -> None:
        group = f"{_POD_GROUPS}/podp{number}"
        if not (self.world.cpuset / group).exists():
            self.world.group(group, _ALL)
        qos = "LSE" if CLAIMS[number] else "LS"
        call = SandboxCreation(
            pod(f"p{number}", qos, CLAIMS[number]), Waiting(time.monotonic(), SECONDS)
        )
        self._calls[number] = _Call(self.frontend, call)
        self.frontend.admission.create_sandbox(call)
        self.follower.step(f"run {number}")

    def _sandbox_ends(self, number: int, *, made: bool) -> None:
        call = self._calls.pop(number)
        if made:
            qos = "LSE" if CLAIMS[number] else "LS"
            self._made[number] = self.world.sandbox(f"p{number}", qos, CLAIMS[number]), None
        if not self._state.pods[number].killed:
            call.frontend.admission.pod_created(call.state.pod, made=made)
        elif made:
            self.frontend.admission.report_change()  # the agent detects the sandbox's cgroup
        self.follower.step(f"sandbox {number}" if made else f"sandbox fails {number}")
        self._other_ends()

    def _ask(self, number: int, *, late: bool) -> None:
        call, state = self._calls[number], self._state
        orphan = state.pods[number].orphan
        if not orphan and state.earlier is Age.OPEN and self._other is None:
            self.follower.step("session ends")
        model = self.follower.model
        expected = (model.draining if orphan else model.answer)(self._state, number)
        if late and expected:
            return
        asked: Creation = call.state
        asked.waiting = Waiting(time.monotonic(), 0.0 if late else SECONDS)
        answer = call.frontend.create(asked)
        if isinstance(answer, Changes):
            cpus = CpuSet.parse(answer.resources.cpuset or _ALL)
            self.follower.step(f"admit {'by the other ' if orphan else ''}{number}")
            sent = self._state.pods[number]
            if (sent.stored, sent.granted) != (cpus.mask, str(cpus) == CLAIMS[number]):
                raise self.follower.deviation(f"the code gives it CPUs {cpus}")
            return
        if expected:
            raise self.follower.deviation(f"the code does not admit {number}: {answer}")
        if isinstance(answer, Wait):
            before = self._state.pods[number].inbox
            if self.datagrams.open and before is not Inbox.ANNOUNCED:
                self.follower.step(f"announce {number}")
            return
        del self._calls[number]
        self.follower.step(f"wait {'of the other ' if orphan else ''}ends {number}")
        self._other_ends()

    def _creation_ends(self, number: int, *, made: bool) -> None:
        call = self._calls.pop(number)
        container_id = ""
        if made:
            sandbox, _ = self._made[number]
            listed = self.world.container(
                sandbox,
                state=ContainerState.CREATED,
                cpuset=str(CpuSet.from_int(self._state.pods[number].stored)),
                created_at=next(self._containers),
            )
            self._made[number] = sandbox, listed
            container_id = listed.id
        if not self._state.pods[number].killed:
            call.frontend.admission.created(call.state, container_id)
        self.follower.step(f"created {number}" if made else f"creation fails {number}")
        self._other_ends()

    def _start(self, number: int) -> None:
        self._calls[number] = _Call(self.frontend, self.frontend.admission.start())
        self._read[number] = self._stored(number)
        self.follower.step(f"start {number}")

    def _start_ends(self, number: int) -> None:
        call = self._calls.pop(number)
        sandbox, container = self._made[number]
        assert container is not None
        listed = self.runtime.listed_containers
        running = msgspec.structs.replace(container, state=ContainerState.RUNNING)
        listed[listed.index(container)] = running
        self._made[number] = sandbox, running
        self.world.group(self._group(number), self._read.pop(number))
        if not self._state.pods[number].killed:
            call.frontend.admission.started(call.state)
        if self._state.pods[number].orphan:
            self.frontend.admission.report_change()  # the agent detects the cgroup
        self.follower.step(f"started {number}")
        self._other_ends()

    def _remove(self, number: int) -> None:
        sandbox, container = self._made[number]
        assert container is not None
        group = self._group(number)
        del self._made[number]
        self.runtime.delete(sandbox)
        for folder in self.world.cpuset.parent.iterdir():
            shutil.rmtree(folder / Path(group).parent)
        self.frontend.admission.removed(container.id)
        self.frontend.admission.sandbox_changed(sandbox.uid)
        self.follower.step(f"remove {number}")

    def _stored(self, number: int) -> str:
        _, container = self._made[number]
        assert container is not None
        return self.runtime.statuses[container.id].resources.cpuset or ""

    def _group(self, number: int) -> str:
        _, container = self._made[number]
        assert container is not None
        return self.runtime.statuses[container.id].cgroups_path.lstrip("/")

    # Frontends

    def _replace_frontend(self, *, killed: bool) -> None:
        """The session of a killed one ends here with its calls: the code takes them as ended after
        CUT_OFF_SECONDS, which the replay does not wait for."""
        self._other, self.frontend = self.frontend, Frontend(self.world, self.datagrams)
        self.frontend.admission.report_change()
        for number, call in list(self._calls.items()):
            if killed and self._state.pods[number].phase is Phase.HELD:
                call.frontend.admission.abandoned(call.state)
                del self._calls[number]
        if killed and self.datagrams.open:
            self._ended_sessions.append(SessionEnded(self._other.session))
        self.follower.step(f"frontend {'crashes' if killed else 'drains'}")
        self._other_ends()

    def _other_ends(self) -> None:
        if self._other is not None and not any(each.orphan for each in self._state.pods):
            self._other.end()
            self._other = None

    # The agent

    def _kill_agent(self) -> None:
        self.agent = None
        self.datagrams.close()
        self._ended_sessions.clear()
        self.follower.step("agent crashes")
        if self._in_pass:
            raise _AgentKilled

    def _run_pass(self) -> None:
        if self.agent is None:
            self.agent = self.world.agent()
            self.datagrams.open = True
            self.follower.step("agent starts")
        self.agent.notified([*self.datagrams.take(), *self._ended_sessions])
        self._ended_sessions.clear()
        self._in_pass = True
        with contextlib.suppress(_AgentKilled):
            self.agent.reconcile()
        self._in_pass = False

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        observe, write = RuntimeView.observe, Hierarchy.write
        publish, revoke = Publisher.publish, Publisher.revoke

        def observed(view: RuntimeView) -> Any:
            listed = observe(view)
            doing = self._state.running_pass
            self.follower.step("observe" if doing is None else "observe again")
            return listed

        def written(hierarchy: Hierarchy, group: str, cpus: CpuSet) -> None:
            self._between()
            try:
                write(hierarchy, group, cpus)
            finally:
                if (number := self._number(group)) is not None:
                    self.follower.write(number)

        def revoked(publisher: Publisher, *given: Any) -> bool:
            self._between()
            changed = revoke(publisher, *given)
            if changed:
                self.follower.step("revoke")
                self._compare()
                self._between()
            return changed

        def published(publisher: Publisher, *given: Any, **named: Any) -> None:
            self._between()
            self.follower.forward(Stage.PUBLISH)
            publish(publisher, *given, **named)
            self.follower.step("publish")
            self._compare()
            self._between()

        changed = mock.patch.object
        with (
            changed(cpuset, "CUT_OFF_SECONDS", 0.0),
            changed(RuntimeView, "observe", observed),
            changed(Hierarchy, "write", written),
            changed(Publisher, "revoke", revoked),
            changed(Publisher, "publish", published),
        ):
            yield

    def _updated(self, container_id: str) -> None:
        """The agent has changed the cpuset of a created container, which may run by now."""
        number = int(container_id.split("-")[1][1:])
        self.follower.write(number)
        if self._state.pods[number].phase is Phase.RUNNING:
            path = self.world.cpuset / self._group(number) / "cpuset.cpus"
            path.write_text(f"{self._stored(number)}\n")

    def _number(self, group: str) -> int | None:
        """Of the pod whose container has the group; None for other groups."""
        parts = group.strip("/").split("/")
        return int(parts[2][4:]) if len(parts) == 4 else None

    def _compare(self) -> None:
        """Raises DeviationError if the node is not in the model's state."""
        state = self._state
        for number, each in enumerate(state.pods):
            if each.phase in LISTED and CpuSet.parse(self._stored(number)).mask != each.stored:
                raise self.follower.deviation(f"{number} has {self._stored(number)} in the runtime")
            if each.phase is Phase.RUNNING:
                cpus = self.world.cpus(self._group(number))
                if CpuSet.parse(cpus).mask != each.kernel:
                    raise self.follower.deviation(f"{number} runs on {cpus}")
        if (published := self._published()) != state.snapshot:
            raise self.follower.deviation(f"{published} is published, not {state.snapshot}")
        if state.up and bool(self.datagrams.waiting or self._ended_sessions) != state.asked:
            raise self.follower.deviation("a notification was lost, or is one too many")

    def _published(self) -> Decided | None:
        path = self.world.state / "snapshot.json"
        if not path.exists():
            return None
        snapshot = snapshots.decode(path.read_bytes())
        pods = {int(uid[1:]): each for uid, each in snapshot.pods.items()}
        owned = {int(each.uid[1:]): each.cpus.mask for each in snapshot.owners}
        return Decided(
            tuple(owned.get(number, 0) for number in range(len(CLAIMS))),
            sum(1 << number for number in pods),
            sum(1 << number for number, each in pods.items() if each.each.blocked),
            sum(
                1 << number
                for number in {int(each.split("-")[1][1:]) for each in snapshot.containers}
            ),
        )
