"""Which pods of one node have to end so that another fits: few, and those of lowest priority.

Whether a set helps is asked of the caller; what helps goes on helping when more pods end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

TRIALS: Final = 400
"""How often a search asks whether a set helps; what it has found by then is the answer."""

Helps: TypeAlias = Callable[[frozenset[str]], bool]
_Key: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]


class PotentialVictim(msgspec.Struct, frozen=True):
    """A pod that may be a victim; `started_at` in nanoseconds since 1970. `budgets`: the disruption
    budgets that it counts in."""

    uid: str
    priority: int
    started_at: int = 0
    budgets: tuple[str, ...] = ()


class Victims(msgspec.Struct, frozen=True):
    """`uids`, the most important pod first; `violations`: how many of them their budgets do not
    allow."""

    uids: tuple[str, ...]
    violations: int


def importance(candidate: PotentialVictim) -> tuple[int, int, str]:
    """Sorts the most important pod first, as kube-scheduler does: by priority, then by start
    time."""
    return -candidate.priority, candidate.started_at, candidate.uid


def violations(chosen: Iterable[PotentialVictim], allowed: Mapping[str, int]) -> int:
    """How many of these pods are more than their budgets allow; `chosen` by importance."""
    return sum(_beyond(chosen, allowed))


def _beyond(chosen: Iterable[PotentialVictim], allowed: Mapping[str, int]) -> Iterator[bool]:
    """Of each whether a budget of its own is used up by then."""
    left = dict(allowed)
    for each in chosen:
        for budget in each.budgets:
            left[budget] = left.get(budget, 0) - 1
        yield any(left[budget] < 0 for budget in each.budgets)


def fewest(
    candidates: Sequence[PotentialVictim],
    allowed: Mapping[str, int],
    helps: Helps,
    *,
    trials: int = TRIALS,
) -> Victims | None:
    """The set that helps and violates the fewest budgets, with the lowest priorities: the highest
    of them is compared first, and a set that goes on is worse than one that ends. Between equals
    those that started last. None where not even all of them help.

    `allowed`: disruptions that each budget still allows. After so many `trials` the best set so far
    is the result, which is never worse than reprieving pods one by one."""
    return _Search(candidates, allowed, helps, trials).run()


class _Search:
    """Depth first over the pods by importance: spare, else end. Sets are bits by that order."""

    def __init__(
        self,
        candidates: Sequence[PotentialVictim],
        allowed: Mapping[str, int],
        helps: Helps,
        trials: int,
    ) -> None:
        self._pods = sorted(candidates, key=importance)
        self._allowed = allowed
        self._ask = helps
        self._left = trials
        self._answers: dict[int, bool] = {}
        self._useless: list[int] = []
        self._best: tuple[_Key, int] | None = None

    def run(self) -> Victims | None:
        everyone = (1 << len(self._pods)) - 1
        if not self._pods or not self._helps(everyone):
            return None
        self._record(self._spared(everyone))
        self._few()
        self._descend(0, 0)
        assert self._best is not None
        (broken, _, _), best = self._best
        return Victims(tuple(each.uid for each in self._of(best)), broken)

    def _spared(self, everyone: int) -> int:
        """What is left when pods are spared one by one, those first that no budget allows. How many
        can be spared together is found by halving."""
        beyond = list(_beyond(self._pods, self._allowed))
        order = sorted(range(len(beyond)), key=lambda place: not beyond[place])
        chosen, start = everyone, 0
        while start < len(order):
            low, high = 0, len(order) - start
            while low < high:
                middle = (low + high + 1) // 2
                spared = sum(1 << place for place in order[start : start + middle])
                if self._helps(chosen & ~spared):
                    low = middle
                else:
                    high = middle - 1
            chosen &= ~sum(1 << place for place in order[start : start + low])
            start += low + 1
        return chosen

    def _few(self) -> None:
        """Single pods and pairs, the least important first: among many similar pods, where one
        large pod replaces several small ones, a search by importance finds it late."""
        places = range(len(self._pods) - 1, -1, -1)
        for place in places:
            self._try((place,))
        for last in places:
            # No pair with it breaks fewer budgets than it alone does.
            broken = violations((self._pods[last],), self._allowed)
            for first in range(last - 1, -1, -1):
                priorities = self._pods[first].priority, self._pods[last].priority
                least = broken, priorities, (-first,)
                if self._left <= 0 or (self._best is not None and least > self._best[0]):
                    break  # so are all more important ones
                self._try((first, last))

    def _try(self, places: tuple[int, ...]) -> None:
        bits = sum([1 << place for place in places])
        if self._left <= 0 or self._in_vain(bits):
            return
        if (self._best is None or self._places_key(places) < self._best[0]) and self._helps(bits):
            self._record(bits)

    def _better(self, chosen: int) -> bool:
        return self._best is None or self._key(chosen) < self._best[0]

    def _descend(self, place: int, chosen: int) -> None:
        """`chosen` of the pods before `place`; with all from there on it helps."""
        if self._left <= 0 or not self._better(chosen):
            return
        if chosen and self._helps(chosen):
            self._record(chosen)
            return
        if place == len(self._pods):
            return
        rest = ((1 << len(self._pods)) - 1) & ~((2 << place) - 1)
        if self._helps(chosen | rest):
            self._descend(place + 1, chosen)
        self._descend(place + 1, chosen | 1 << place)

    def _record(self, chosen: int) -> None:
        found = self._key(chosen), chosen
        if self._best is None or found < self._best:
            self._best = found

    def _key(self, chosen: int) -> _Key:
        """What is less is better; that of a set's first pods is never more than its own."""
        return self._places_key([each for each in range(len(self._pods)) if chosen >> each & 1])

    def _places_key(self, places: Sequence[int]) -> _Key:
        pods = [self._pods[place] for place in places]
        return (
            violations(pods, self._allowed),
            tuple(each.priority for each in pods),
            tuple(-place for place in places),
        )

    def _of(self, chosen: int) -> list[PotentialVictim]:
        return [each for place, each in enumerate(self._pods) if chosen >> place & 1]

    def _in_vain(self, chosen: int) -> bool:
        """No more than what is known not to help."""
        return any(not chosen & ~useless for useless in self._useless)

    def _helps(self, chosen: int) -> bool:
        if not chosen or self._in_vain(chosen):
            return False
        known = self._answers.get(chosen)
        if known is None:
            self._left -= 1
            known = self._answers[chosen] = self._ask(
                frozenset(each.uid for each in self._of(chosen))
            )
            if not known:
                self._useless.append(chosen)
        return known
