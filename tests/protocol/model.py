"""The protocol of `docs/admission.md` as a model: the states of a small node, and every step that
agent, frontend, runtime and kernel can take from each.

CPU sets are bit masks. A pod has one container. Times are abstract: what ended is either unseen, or
ended before the agent's present pass began. Sandboxes' CPUs, limits and devices are not in it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import partial
from typing import Final

import msgspec

replace = msgspec.structs.replace


class Phase(IntEnum):
    """Of a pod with its container. In SANDBOX, HELD, SENT and STARTING a call is in progress."""

    NEW = 0
    SANDBOX = 1
    READY = 2
    HELD = 3
    """The frontend holds CreateContainer."""
    SENT = 4
    """The runtime creates the container."""
    CREATED = 5
    STARTING = 6
    """The runtime has read the cpuset, and the container has no cgroup yet."""
    RUNNING = 7
    GONE = 8


IN_CALL: Final = (Phase.SANDBOX, Phase.HELD, Phase.SENT, Phase.STARTING)
LISTED: Final = (Phase.CREATED, Phase.STARTING, Phase.RUNNING)
"""The runtime lists the container."""


class Age(IntEnum):
    """Of a call whose container the frontend assumes."""

    NONE = 0
    OPEN = 1
    ENDED = 2
    BEFORE_PASS = 3
    """It ended before the agent's present pass began."""


class Inbox(IntEnum):
    """The last notification about a pod that the agent has not handled."""

    NONE = 0
    ANNOUNCED = 1
    DROPPED = 2


class Container(msgspec.Struct, frozen=True, gc=False):
    """A pod, its container, and what the frontend and the agent keep about them."""

    phase: Phase = Phase.NEW
    stored: int = 0
    """The runtime's cpuset of the container."""
    read: int = 0
    """The cpuset with which it is being started."""
    kernel: int = 0
    born: int = 0
    """The cpuset of its cgroup before the agent's first write."""
    journalled: bool = False
    granted: bool = False
    """The frontend created it with CPUs of its own."""
    assumed: Age = Age.NONE
    may_hold: int = 0
    """The CPUs of the assumed container."""
    failed: int = 0
    """The CPUs of creations that failed, and that the frontend assumes."""
    failed_before: int = 0
    """Those of creations that failed before the agent's present pass began."""
    start: Age = Age.NONE
    stale: bool = False
    """A snapshot was published since the start began."""
    inbox: Inbox = Inbox.NONE
    announced: bool = False
    told: bool = False
    """Only where a held call announces its pod once."""
    orphan: bool = False
    """The call in progress is of another frontend, which drains or was killed."""
    killed: bool = False
    """That one was killed, and notifies nobody of the end of the call."""


class Decided(msgspec.Struct, frozen=True, gc=False):
    """A snapshot."""

    owned: tuple[int, ...]
    known: int
    """The pods that the agent has decided about."""
    blocked: int = 0
    containers: int = 0


class Stage(IntEnum):
    """The next stage of a pass."""

    JOURNAL = 0
    ROOM = 1
    PUBLISH = 2
    REVOKE = 3
    """The last snapshot blocks the owners that the pass drops."""
    OBSERVE = 4
    """The pass begins again, without new notifications."""


class Pass(msgspec.Struct, frozen=True, gc=False):
    """A pass of the agent that has observed and decided."""

    stages: tuple[Stage, ...]
    decided: Decided
    running: int
    created: int
    """The containers that it has listed."""
    writes: tuple[int, ...]
    """The containers to change, in this order."""


class State(msgspec.Struct, frozen=True, gc=False):
    pods: tuple[Container, ...]
    up: bool = False
    """Whether the agent runs."""
    running_pass: Pass | None = None
    asked: bool = False
    """A notification waits in the socket."""
    fresh: bool = False
    """A notification was handled, and no snapshot has answered it."""
    snapshot: Decided | None = None
    earlier: Age = Age.ENDED
    """The creations and starts of another frontend."""
    faults: int = 0
    """The crashes, reboots, failures and refusals until here."""


class Bounds(msgspec.Struct, frozen=True):
    """What the explorer tries. `claims`: by pod, the CPUs that it claims, 0 for a sharer."""

    cpus: int
    claims: tuple[int, ...]
    faults: int = 1
    """The most of them together: crashes of the agent, crashes of the frontend, frontends that
    drain while the next one serves, reboots, writes that the kernel refuses, calls that fail in the
    runtime, waits that end by `--hold-seconds`."""

    @property
    def all(self) -> int:
        return (1 << self.cpus) - 1


class Rules(msgspec.Struct, frozen=True):
    """The protocol: without arguments, the one of the code. Each field breaks it."""

    publishes_first: bool = False
    """The snapshot is published before room is made."""
    answers_before_publishing: bool = False
    """A creation is answered by the decision of the pass in progress."""
    any_snapshot_has_seen: bool = False
    """A creation counts as seen in the next snapshot, whenever its pass began."""
    forgets_starts: bool = False
    forgets_earlier: bool = False
    """A new frontend does not assume the creations of its predecessor."""
    ignores_blocked: bool = False
    forgets_owners: bool = False
    """A new agent does not read the last snapshot."""
    journals_late: bool = False
    announces_once: bool = False
    """A held call does not repeat its announcement."""
    keeps_ended_sessions: bool = False
    """The claims of a frontend that has ended stay."""
    drops_at_once: bool = False
    """A pass gives away the CPUs of an owner that the last snapshot admits."""
    drops_unseen: bool = False
    """A pass does not look again for an owner that the last snapshot has admitted until then."""
    forgets_others: bool = False
    """A new frontend takes the calls of its predecessor as ended."""
    ignores_timeouts: bool = False
    """The policy `ignore` for owners. It is a setting, and breaks nothing."""


Step = tuple[str, State]


class Model:
    """The steps of the protocol."""

    def __init__(self, bounds: Bounds, rules: Rules = Rules()) -> None:  # noqa: B008
        self.bounds = bounds
        self.rules = rules
        self.first = State((Container(),) * len(bounds.claims))

    def steps(self, state: State) -> Iterator[Step]:
        """Every step from the state, with its name."""
        for number in range(len(state.pods)):
            yield from self.calls(state, number)
            yield from self.failing(state, number)
        yield from self.others(state)
        yield from self.agent(state)
        yield from self.crashes(state)

    def calls(self, state: State, number: int) -> Iterator[Step]:
        """The steps of kubelet, frontend and runtime for a pod."""
        pod = state.pods[number]
        put = partial(_put, state, number)
        if pod.phase is Phase.NEW:
            yield f"run {number}", self.notify(put(phase=Phase.SANDBOX), number, Inbox.ANNOUNCED)
        elif pod.phase is Phase.READY:
            yield f"create {number}", put(phase=Phase.HELD, told=False)
        elif pod.phase is Phase.CREATED:
            started = put(phase=Phase.STARTING, read=pod.stored, start=Age.OPEN, stale=False)
            yield f"start {number}", started
        elif pod.phase is Phase.RUNNING:
            ended = Container(
                Phase.GONE,
                failed=pod.failed,
                failed_before=pod.failed_before,
                start=pod.start,
                stale=pod.stale,
                announced=pod.announced,
            )
            changed = replace(state, pods=_with(state.pods, number, ended))
            yield f"remove {number}", self.notify(changed, number, Inbox.DROPPED)
        yield from self.progress(state, number)
        if pod.orphan and pod.phase is Phase.SANDBOX:
            yield f"sandbox aborted {number}", self.sandbox_ended(state, number, Phase.NEW)
        elif pod.orphan and pod.phase is Phase.SENT:
            ended = put(phase=Phase.READY, orphan=False, killed=False, granted=False, stored=0)
            yield f"creation aborted {number}", ended
        elif pod.orphan and pod.phase is Phase.STARTING:
            ended = put(phase=Phase.CREATED, orphan=False, killed=False, read=0)
            yield f"start aborted {number}", ended

    def others(self, state: State) -> Iterator[Step]:
        """The frontend notices that no other one has calls in progress."""
        if state.earlier is Age.OPEN and not any(pod.orphan for pod in state.pods):
            yield "session ends", replace(state, earlier=Age.ENDED)

    def progress(self, state: State, number: int) -> Iterator[Step]:
        """The steps that bring a call in progress nearer to its end."""
        pod = state.pods[number]
        put = partial(_put, state, number)
        if pod.phase is Phase.SANDBOX:
            yield f"sandbox {number}", self.sandbox_ended(state, number, Phase.READY)
        elif pod.phase is Phase.HELD and pod.orphan:
            given = self.draining(state, number)
            if given:
                changed = put(phase=Phase.SENT, stored=given[0], granted=given[1])
                yield f"admit by the other {number}", changed
            else:
                yield f"wait of the other ends {number}", put(phase=Phase.READY, orphan=False)
                if pod.inbox is not Inbox.ANNOUNCED and state.up:
                    yield f"announce {number}", self.notify(state, number, Inbox.ANNOUNCED)
        elif pod.phase is Phase.HELD:
            given = self.answer(state, number)
            if given:
                yield f"admit {number}", self.sent(state, number, *given)
            elif pod.inbox is not Inbox.ANNOUNCED and not pod.told and state.up:
                changed = put(told=self.rules.announces_once)
                yield f"announce {number}", self.notify(changed, number, Inbox.ANNOUNCED)
        elif pod.phase is Phase.SENT:
            assumed = Age.ENDED if pod.assumed is Age.OPEN else pod.assumed
            created = put(phase=Phase.CREATED, assumed=assumed, orphan=False, killed=False)
            yield f"created {number}", created if pod.killed else self.report(created)
        elif pod.phase is Phase.STARTING:
            start = Age.ENDED if pod.start is Age.OPEN else pod.start
            changed = put(
                phase=Phase.RUNNING,
                read=0,
                kernel=pod.read,
                born=pod.read,
                journalled=False,
                start=start,
                orphan=False,
                killed=False,
            )
            reported = pod.stale or pod.orphan
            yield f"started {number}", self.report(changed) if reported else changed

    def failing(self, state: State, number: int) -> Iterator[Step]:
        """Waits that end, and calls that fail in the runtime."""
        if state.faults >= self.bounds.faults:
            return
        pod = state.pods[number]
        changed = replace(state, faults=state.faults + 1)
        put = partial(_put, changed, number)
        if pod.phase is Phase.SANDBOX:
            failed = self.sandbox_ended(changed, number, Phase.NEW)
            yield f"sandbox fails {number}", failed
        elif pod.phase is Phase.SENT:
            failed = put(
                phase=Phase.READY,
                stored=0,
                granted=False,
                assumed=Age.NONE,
                may_hold=0,
                failed=pod.failed | pod.may_hold,
                orphan=False,
                killed=False,
            )
            yield f"creation fails {number}", failed if pod.killed else self.report(failed)
        elif pod.phase is Phase.HELD and not pod.orphan and not self.answer(state, number):
            yield f"wait ends {number}", put(phase=Phase.READY, told=False)
            if self.rules.ignores_timeouts and (share := self.share(state, number)):
                yield f"wait ignored {number}", self.sent(put(), number, share, False)

    def sent(self, state: State, number: int, cpus: int, granted: bool) -> State:
        """The frontend sends the creation to the runtime, and assumes the container."""
        return _put(
            state,
            number,
            phase=Phase.SENT,
            stored=cpus,
            granted=granted,
            assumed=Age.OPEN,
            may_hold=cpus,
            told=False,
        )

    def sandbox_ended(self, state: State, number: int, phase: Phase) -> State:
        """The frontend of the call tells the agent. Without one, the agent detects the sandbox's
        cgroup."""
        changed = _put(state, number, phase=phase, orphan=False, killed=False)
        if not state.pods[number].killed:
            return self.notify(changed, number, Inbox.DROPPED)
        return self.report(changed) if phase is Phase.READY else changed

    def notify(self, state: State, number: int, inbox: Inbox) -> State:
        """A datagram, which is lost while no agent runs."""
        return _put(replace(state, asked=True), number, inbox=inbox) if state.up else state

    def report(self, state: State) -> State:
        """A notification that changes no claim."""
        return replace(state, asked=True) if state.up else state

    def answer(self, state: State, number: int) -> tuple[int, bool] | None:
        """The CPUs of a held creation, and whether they are its own; None while it waits."""
        snapshot = state.snapshot
        if self.rules.answers_before_publishing and state.running_pass is not None:
            snapshot = state.running_pass.decided
        claims = self.bounds.claims[number]
        if snapshot is None:
            return None if claims else (self.bounds.all, False)
        bit = 1 << number
        if not snapshot.known & bit:
            share = 0 if claims else self.share(state, number)
            return (share, False) if share else None
        if snapshot.blocked & bit and not self.rules.ignores_blocked:
            return None
        own = snapshot.owned[number]
        if not own:
            return self.bounds.all & ~sum(snapshot.owned), False
        if state.earlier:
            return None
        for other, pod in enumerate(state.pods):
            if pod.start and pod.stale and not self.rules.forgets_starts:
                return None
            same = other == number and pod.granted
            if pod.assumed and not same and pod.may_hold & own:
                return None
            if other != number and (pod.failed | pod.failed_before) & own:
                return None
        return own, True

    def draining(self, state: State, number: int) -> tuple[int, bool] | None:
        """The answer of another frontend, which assumes no calls of this one, for a call that it
        holds. It creates no owner while this one lives."""
        known = replace(
            state,
            earlier=Age.OPEN,
            pods=tuple(
                replace(pod, assumed=Age.NONE, failed=0, failed_before=0, start=Age.NONE)
                for pod in state.pods
            ),
        )
        return self.answer(known, number)

    def share(self, state: State, number: int) -> int:
        """The pool without the CPUs of containers that the frontend assumes."""
        if state.snapshot is None:
            return self.bounds.all
        taken = sum(state.snapshot.owned)
        for other, pod in enumerate(state.pods):
            if other != number and self.bounds.claims[other]:
                taken |= pod.failed | pod.failed_before
                if pod.assumed and pod.granted:
                    taken |= pod.may_hold
        return self.bounds.all & ~taken

    def agent(self, state: State) -> Iterator[Step]:
        """The steps of the agent, with writes that the kernel refuses."""
        if not state.up:
            yield "agent starts", replace(state, up=True, asked=True, fresh=True)
        elif state.running_pass is None:
            yield "observe", self.observe(self.handle(state))
        else:
            yield self.next_stage(state, state.running_pass)
            doing = state.running_pass
            room = doing.stages[0] is Stage.ROOM and doing.writes
            if room and state.faults < self.bounds.faults:
                refused = replace(state, running_pass=_written(doing), faults=state.faults + 1)
                yield f"refused {doing.writes[0]}", refused

    def handle(self, state: State) -> State:
        """The agent handles the notifications."""
        pods = tuple(_handled(pod) for pod in state.pods)
        return replace(state, pods=pods, asked=False, fresh=state.fresh or state.asked)

    def observe(self, state: State) -> State:
        """The agent lists the runtime and decides."""
        pods = tuple(_observed(pod) for pod in state.pods)
        running = _mask(pods, (Phase.RUNNING,))
        created = _mask(pods, (Phase.CREATED, Phase.STARTING))
        decided = self.decide(state, pods, running | created)
        wanted = partial(self.wanted, decided)
        differing = [
            number
            for number, pod in enumerate(pods)
            if running >> number & 1 and pod.kernel != wanted(number)
        ]
        # Containers that only lose CPUs come first.
        differing.sort(key=lambda number: bool(wanted(number) & ~pods[number].kernel))
        starting = [
            number
            for number, pod in enumerate(pods)
            if created >> number & 1 and pod.stored != wanted(number)
        ]
        starting.sort(key=lambda number: bool(decided.owned[number]))
        stages = (Stage.JOURNAL, Stage.ROOM, Stage.PUBLISH)
        if _dropped(state.snapshot, decided) and not self.rules.drops_at_once:
            again = () if self.rules.drops_unseen else (Stage.OBSERVE,)
            stages = (Stage.REVOKE, *(again or stages))
        elif self.rules.publishes_first:
            stages = (Stage.PUBLISH, Stage.JOURNAL, Stage.ROOM)
        elif self.rules.journals_late:
            stages = (Stage.ROOM, Stage.JOURNAL, Stage.PUBLISH)
        return replace(
            state,
            pods=pods,
            earlier=_before_pass(state.earlier),
            running_pass=Pass(stages, decided, running, created, (*differing, *starting)),
        )

    def decide(self, state: State, pods: tuple[Container, ...], containers: int) -> Decided:
        """The owners: first those of the last snapshot, then pods that run on exactly the CPUs that
        they claim, then older ones."""
        present = [
            number
            for number, pod in enumerate(pods)
            if pod.announced or pod.phase not in (Phase.NEW, Phase.SANDBOX, Phase.GONE)
        ]
        last = state.snapshot.owned if state.snapshot else (0,) * len(pods)
        if self.rules.forgets_owners:
            last = (0,) * len(pods)
        claims = self.bounds.claims

        def rank(number: int) -> tuple[bool, bool, int]:
            exact = pods[number].kernel == claims[number]
            return not last[number], not exact, number

        owned = [0] * len(pods)
        for number in sorted(present, key=rank):
            if not claims[number] & sum(owned):
                owned[number] = claims[number]
        return Decided(tuple(owned), sum(1 << each for each in present), 0, containers)

    def wanted(self, decided: Decided, number: int) -> int:
        return decided.owned[number] or self.bounds.all & ~sum(decided.owned)

    def next_stage(self, state: State, doing: Pass) -> Step:
        stage = doing.stages[0]
        after = replace(doing, stages=doing.stages[1:])
        if stage is Stage.REVOKE:
            assert state.snapshot is not None
            blocked = state.snapshot.blocked | _dropped(state.snapshot, doing.decided)
            snapshot = replace(state.snapshot, blocked=blocked)
            return "revoke", replace(state, snapshot=snapshot, running_pass=after)
        if stage is Stage.OBSERVE:
            return "observe again", self.observe(state)
        if stage is Stage.JOURNAL:
            pods = tuple(
                replace(pod, journalled=True)
                if number in doing.writes and pod.phase is Phase.RUNNING
                else pod
                for number, pod in enumerate(state.pods)
            )
            return "journal", replace(state, pods=pods, running_pass=after)
        if stage is Stage.ROOM:
            if not doing.writes:
                return "room", replace(state, running_pass=after if after.stages else None)
            number = doing.writes[0]
            written = replace(state, running_pass=_written(doing))
            return f"write {number}", self.write(written, doing, number)
        return "publish", self.publish(state, after if after.stages else None)

    def write(self, state: State, doing: Pass, number: int) -> State:
        """The agent changes the cpuset of a container: in the kernel if it has listed it as
        running, otherwise in the runtime, which changes the kernel too if it runs by now."""
        pod = state.pods[number]
        cpus = self.wanted(doing.decided, number)
        if doing.running >> number & 1:
            return _put(state, number, kernel=cpus) if pod.phase is Phase.RUNNING else state
        if pod.phase not in LISTED:
            return state
        if doing.decided.owned[number]:
            others = sum(doing.decided.owned) & ~doing.decided.owned[number]
            occupied = 0
            for other in range(len(state.pods)):
                if other != number:
                    occupied |= self.holds(state, doing, other)
            gained = cpus & ~(occupied & ~pod.stored)
            pool = self.bounds.all & ~sum(doing.decided.owned)
            cpus = gained or pod.stored & ~others or pool or pod.stored
        if pod.phase is Phase.RUNNING:
            return _put(state, number, stored=cpus, kernel=cpus, journalled=True)
        return _put(state, number, stored=cpus)

    def holds(self, state: State, doing: Pass, number: int) -> int:
        """The CPUs that a listed container has, or will start on."""
        if doing.running >> number & 1:
            return state.pods[number].kernel
        return state.pods[number].stored if doing.created >> number & 1 else 0

    def publish(self, state: State, after: Pass | None) -> State:
        doing = state.running_pass
        assert doing is not None
        blocked = 0
        for number, own in enumerate(doing.decided.owned):
            for other in range(len(state.pods)):
                if other != number and own & self.holds(state, doing, other):
                    blocked |= 1 << number
        snapshot = replace(doing.decided, blocked=blocked)
        state = replace(state, running_pass=after)
        if snapshot == state.snapshot and not state.fresh:
            return state
        seen = self.seen
        earlier = Age.NONE if seen(state.earlier) else state.earlier
        pods = tuple(self.after_snapshot(pod) for pod in state.pods)
        return replace(state, pods=pods, snapshot=snapshot, fresh=False, earlier=earlier)

    def seen(self, age: Age) -> bool:
        if self.rules.any_snapshot_has_seen:
            return age in (Age.ENDED, Age.BEFORE_PASS)
        return age is Age.BEFORE_PASS

    def after_snapshot(self, pod: Container) -> Container:
        """What the frontend still assumes with a new snapshot."""
        if self.seen(pod.assumed):
            pod = replace(pod, assumed=Age.NONE, may_hold=0)
        if pod.failed_before or (pod.failed and self.seen(Age.ENDED)):
            left = 0 if self.seen(Age.ENDED) else pod.failed
            pod = replace(pod, failed=left, failed_before=0)
        if pod.start is Age.BEFORE_PASS:
            return replace(pod, start=Age.NONE, stale=False)
        return replace(pod, stale=True) if pod.start else pod

    def crashes(self, state: State) -> Iterator[Step]:
        """Every crash, and a reboot, which leaves only the ended pods."""
        if state.faults >= self.bounds.faults:
            return
        changed = replace(state, faults=state.faults + 1)
        if state.up:
            yield "agent crashes", self.agent_crashed(changed)
        yield "frontend crashes", self.frontend_replaced(changed, killed=True)
        yield "frontend drains", self.frontend_replaced(changed, killed=False)
        pods = tuple(
            Container(Phase.GONE if pod.phase is Phase.GONE else Phase.NEW) for pod in state.pods
        )
        yield "reboot", State(pods, faults=changed.faults)

    def agent_crashed(self, state: State) -> State:
        """What the agent leaves: runtime, kernel, snapshot and journal."""
        pods = tuple(
            replace(
                pod,
                announced=False,
                inbox=Inbox.NONE,
                assumed=_unseen(pod.assumed),
                failed=pod.failed | pod.failed_before,
                failed_before=0,
                start=_unseen(pod.start),
            )
            for pod in state.pods
        )
        return replace(
            state,
            pods=pods,
            up=False,
            running_pass=None,
            asked=False,
            fresh=False,
            earlier=_unseen(state.earlier),
        )

    def frontend_replaced(self, state: State, *, killed: bool) -> State:
        """The next frontend serves, and the runtime goes on with the calls of the one before.
        `killed`: that one has no session any more; otherwise it drains."""
        pods = []
        for pod in state.pods:
            held = pod.phase is Phase.HELD
            changes = replace(
                pod,
                phase=Phase.READY if held and killed else pod.phase,
                assumed=Age.NONE,
                may_hold=0,
                failed=0,
                failed_before=0,
                start=Age.NONE,
                stale=False,
                told=False,
                orphan=pod.phase in IN_CALL and not (held and killed),
                killed=pod.killed or (killed and pod.phase in IN_CALL and not held),
            )
            claimed = pod.announced or pod.inbox is Inbox.ANNOUNCED
            if killed and state.up and claimed and not self.rules.keeps_ended_sessions:
                changes = replace(changes, inbox=Inbox.DROPPED)
            pods.append(changes)
        earlier = Age.OPEN
        if self.rules.forgets_earlier:
            earlier = Age.NONE
        elif self.rules.forgets_others:
            earlier = Age.ENDED
        return self.report(replace(state, pods=tuple(pods), earlier=earlier))

    def fair(self, state: State, *, runtime_first: bool) -> State | None:
        """The next state if nothing fails, nobody makes a new call, and the agent runs a pass only
        for a notification or a new cgroup; None if nothing is to be done."""
        of_calls = [
            step for number in range(len(state.pods)) for step in self.progress(state, number)
        ]
        of_calls += self.others(state)
        of_calls.sort(key=lambda step: step[0].startswith("announce"))
        agent_works = not state.up or state.asked or state.running_pass is not None
        agent_works = agent_works or self.differs(state)
        if runtime_first or not agent_works:
            for _, after in of_calls:
                return after
        if agent_works:
            return next(after for _, after in self.agent(state))
        return None

    def differs(self, state: State) -> bool:
        """Whether a container's cgroup does not have the CPUs of the snapshot, which the agent
        detects when the cgroup is made."""
        snapshot = state.snapshot
        return snapshot is not None and any(
            pod.phase is Phase.RUNNING and pod.kernel != self.wanted(snapshot, number)
            for number, pod in enumerate(state.pods)
        )


def _with(pods: tuple[Container, ...], number: int, pod: Container) -> tuple[Container, ...]:
    return (*pods[:number], pod, *pods[number + 1 :])


def _put(state: State, number: int, **changes: object) -> State:
    pod = replace(state.pods[number], **changes)
    return replace(state, pods=_with(state.pods, number, pod))


def _mask(pods: tuple[Container, ...], phases: tuple[Phase, ...]) -> int:
    return sum(1 << number for number, pod in enumerate(pods) if pod.phase in phases)


def _before_pass(age: Age) -> Age:
    return Age.BEFORE_PASS if age is Age.ENDED else age


def _unseen(age: Age) -> Age:
    return Age.ENDED if age is Age.BEFORE_PASS else age


def _handled(pod: Container) -> Container:
    """The pod after its notification."""
    announced = pod.announced if pod.inbox is Inbox.NONE else pod.inbox is Inbox.ANNOUNCED
    return replace(pod, inbox=Inbox.NONE, announced=announced)


def _observed(pod: Container) -> Container:
    """The pod if it is listed now, and with what ended before."""
    listed = pod.phase not in (Phase.NEW, Phase.SANDBOX, Phase.GONE)
    return replace(
        pod,
        announced=pod.announced and not listed,
        assumed=_before_pass(pod.assumed),
        failed=0,
        failed_before=pod.failed | pod.failed_before,
        start=_before_pass(pod.start),
    )


def _written(doing: Pass) -> Pass:
    return replace(doing, writes=doing.writes[1:])


def _dropped(snapshot: Decided | None, decided: Decided) -> int:
    """The owners of the snapshot that it does not block, and that are none any more."""
    if snapshot is None:
        return 0
    dropped = sum(
        1 << number
        for number, own in enumerate(snapshot.owned)
        if own and not decided.owned[number]
    )
    return dropped & ~snapshot.blocked
