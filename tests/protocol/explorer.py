"""Visits every state of the model, breadth first, and checks the invariants in each."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tests.protocol.model import IN_CALL, Model, Phase, State


class BrokenError(Exception):
    """An invariant does not hold. The message has the shortest steps to a state where it fails."""


class Explored(msgspec.Struct, frozen=True):
    """What the explorer has visited."""

    states: int
    transitions: int
    depth: int
    """The most steps from the first state."""
    longest_wait: int
    """The most steps until every call in progress ends, with a fair agent and without a crash."""


def overlap(state: State) -> str:
    """No CPU has two users: no container runs on CPUs with which another was created as its
    owner."""
    for number, pod in enumerate(state.pods):
        if pod.phase is not Phase.RUNNING or not pod.granted:
            continue
        for other, beside in enumerate(state.pods):
            if other != number and beside.kernel & pod.kernel:
                return f"{number} and {other} run on the same CPU"
    return ""


def unjournalled(state: State) -> str:
    """No value of a cgroup is lost."""
    for number, pod in enumerate(state.pods):
        if pod.kernel != pod.born and not pod.journalled:
            return f"the original cpuset of {number} is not in the journal"
    return ""


class _Fair:
    """Where fair runs lead from each state, and after how many steps."""

    def __init__(self, model: Model, *, runtime_first: bool) -> None:
        self._model = model
        self._runtime_first = runtime_first
        self._ends: dict[State, tuple[State, int]] = {}

    def end(self, state: State) -> tuple[State, int] | None:
        """The last state of the run and its number of steps; None if it never ends."""
        path: list[State] = []
        on_path = set()
        while state not in self._ends:
            if state in on_path:
                return None
            path.append(state)
            on_path.add(state)
            after = self._model.fair(state, runtime_first=self._runtime_first)
            if after is None:
                self._ends[state] = state, -1
                break
            state = after
        last, steps = self._ends[state]
        for each in reversed(path):
            steps += 1
            self._ends[each] = last, steps
        return last, self._ends[path[0] if path else state][1]


def explore(model: Model) -> Explored:
    """Raises BrokenError."""
    came_from: dict[State, tuple[State, str] | None] = {model.first: None}
    level = [model.first]
    transitions = depth = longest = 0
    runs = [_Fair(model, runtime_first=each) for each in (True, False)]
    while level:
        following = []
        for state in level:
            for name, after in model.steps(state):
                transitions += 1
                if after in came_from:
                    continue
                came_from[after] = state, name
                problem = overlap(after) or unjournalled(after)
                for fair in runs:
                    steps, unsettled = _settles(model, fair, after)
                    longest, problem = max(longest, steps), problem or unsettled
                if problem:
                    raise BrokenError(_story(came_from, after, problem))
                following.append(after)
        level = following
        depth += bool(level)
    return Explored(len(came_from), transitions, depth, longest)


def _settles(model: Model, fair: _Fair, state: State) -> tuple[int, str]:
    """The number of steps after which a fair run from the state ends, and what is wrong at its
    end."""
    ended = fair.end(state)
    if ended is None:
        return 0, "somebody waits for ever: the fair run never ends"
    last, steps = ended
    for number, pod in enumerate(last.pods):
        if pod.phase in IN_CALL:
            return steps, f"{number} waits for ever"
    if problem := next(_unsettled(model, last), ""):
        return steps, problem
    if state.up and not _rivals(model, state) and not any(_announced_only(model, state)):
        crashed = fair.end(model.agent_crashed(state))
        if crashed is None:
            return steps, "somebody waits for ever after a crash of the agent"
        if _effect(crashed[0]) != _effect(last):
            return steps, "a crash of the agent here leads to another state"
    return steps, ""


def _unsettled(model: Model, state: State) -> Iterator[str]:
    """What is wrong in a state in which nothing is to be done."""
    snapshot = state.snapshot
    if snapshot is None:
        yield "the agent has published nothing"
        return
    for number, pod in enumerate(state.pods):
        if snapshot.owned[number] and pod.phase in (Phase.NEW, Phase.GONE):
            yield f"{number} owns CPUs for ever, and does not exist"
        if pod.phase is Phase.RUNNING and pod.kernel != model.wanted(snapshot, number):
            yield f"{number} does not run on the CPUs of the decision"


def _rivals(model: Model, state: State) -> bool:
    """Whether pods claim the same CPU, and a pass has chosen its owner but not published that."""
    claims = model.bounds.claims
    union = 0
    for claim in claims:
        union |= claim
    last = state.snapshot.owned if state.snapshot else None
    doing = state.running_pass
    return sum(claims) != union and doing is not None and doing.decided.owned != last


def _announced_only(model: Model, state: State) -> Iterator[bool]:
    """Whether each claim is of a pod that only an announcement names: it ends with the agent."""
    for number, pod in enumerate(state.pods):
        yield bool(model.bounds.claims[number]) and pod.phase is Phase.SANDBOX


def _effect(state: State) -> tuple[object, ...]:
    owned = state.snapshot.owned if state.snapshot else ()
    return owned, tuple((pod.phase, pod.kernel) for pod in state.pods)


def _story(came_from: dict[State, tuple[State, str] | None], state: State, problem: str) -> str:
    names = []
    while (origin := came_from[state]) is not None:
        state, name = origin
        names.append(name)
    return f"{problem}, after: {', '.join(reversed(names))}"
