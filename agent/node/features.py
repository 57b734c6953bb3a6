"""Features that want values of files each second, and what writes them: with the journal that
passes use, so that a value that is wanted no more is given back."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from agent.cgroup import limits
from agent.cgroup.hierarchy import Controllers
from agent.cgroup.journal import Journal
from agent.cgroup.order import ValueChange, ValueOutcome, WriteState
from agent.host import files
from agent.host.log_once import Problem
from agent.model.settings.feature_modes import FeatureMode
from agent.view.features import ShownFeature

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 5.0
"""What does not change is compared with what the machine has so often."""
TOLD_SECONDS: Final = 5.0
MOST_NAMED: Final = 5
_MOST_TEXT: Final = 500
Key = tuple[str, str]
"""A group and a file of it, or the names of another value (`hierarchy.GroupValues`)."""


class WantedFiles(msgspec.Struct, frozen=True):
    """What a feature wants."""

    files: Mapping[Key, str] = {}
    """The contents of files."""
    problem: str = ""
    """Why it can't have, on this machine or now, what is wanted of it."""
    notes: tuple[str, ...] = ()
    """What people are told about them beside their number."""
    seen: Collection[Key] = frozenset()
    """The files that the feature has just read, and which have these contents."""


SeenT = TypeVar("SeenT", contravariant=True)
MomentT = TypeVar("MomentT")


class Feature(Protocol[SeenT]):
    """A feature. It is called from the thread of the passes."""

    name: str
    """One of those that have a mode."""

    def wanted(self, moment: SeenT) -> WantedFiles:
        """What it wants now. Files that it wants no more get their values back. A feature that is
        off gets a moment in which nothing is wanted."""


@runtime_checkable
class TellsRefusals(Protocol):
    """A feature that says itself which of its writes fail, in its problem or notes, and when they
    are tried again: it does not want these files meanwhile."""

    def refused(self, failures: Mapping[Key, ValueChange]) -> None:
        """Takes the writes that have just failed."""


class WouldWrite(msgspec.Struct, frozen=True):
    """What a feature that observes would write if it acted."""

    files: int = 0
    first: tuple[str, ...] = ()
    """The first of them, as text."""


class FeatureState(msgspec.Struct, frozen=True):
    """What the last second has brought."""

    wanted: Mapping[str, WantedFiles] = {}
    """By the name of the feature."""
    failed: tuple[str, ...] = ()
    """The writes that failed."""
    would_write: Mapping[str, WouldWrite] = {}
    """By the name of a feature that observes."""


class ShownFile:
    """A file of the state folder for people, which is written at most every TOLD_SECONDS."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._told: msgspec.Struct | None = None
        self._told_at = -TOLD_SECONDS
        self._problem = Problem(log, f"{path}: ")

    def tell(self, shown: msgspec.Struct) -> None:
        """Writes it if it differs. Never raises."""
        now = self._clock()
        if now - self._told_at < TOLD_SECONDS or shown == self._told:
            return
        self._told_at = now
        try:
            files.replace(self._path, msgspec.json.encode(shown), durable=False)
        except OSError as error:
            self._problem.report(files.reason(error))
        else:
            self._told = shown
            self._problem.clear()


class FeatureWriter(Generic[MomentT]):
    """It is used from the thread of the passes.

    `modes`: has the mode of each feature, by its name.
    `nothing`: is the moment of a feature that is off.
    `concerns`: says whether a journalled file is one that these features write.
    `held`: has the files that features of an agent before this one may have.
    `check_seconds`: is how often values are read that do not change."""

    def __init__(
        self,
        controllers: Controllers,
        journal: Journal,
        features: Sequence[Feature[MomentT]],
        modes: Mapping[str, FeatureMode],
        nothing: MomentT,
        concerns: Callable[[str, str], bool],
        held: frozenset[Key],
        clock: Callable[[], float] = time.monotonic,
        check_seconds: float = CHECK_SECONDS,
    ) -> None:
        self._controllers = controllers
        self._journal = journal
        self._features = features
        self._modes = modes
        self._nothing = nothing
        self._concerns = concerns
        self._clock = clock
        self._check_seconds = check_seconds
        self._contents: Mapping[Key, str] | None = None
        self._checked_at = 0.0
        self._compared_at: float | None = None
        self._faults: dict[str, str] = {}
        # The first pass must not give back what stays wanted.
        self.held = held
        """The files that features have now."""
        self.state = FeatureState()
        """What the last step has brought; read by other threads."""

    def step(self, moment: MomentT) -> None:
        """Computes, writes what differs, and gives back what is wanted no more."""
        wanted = {feature.name: self._wanted(feature, moment) for feature in self._features}
        acting = [of for name, of in wanted.items() if self._modes[name] is FeatureMode.ACT]
        contents = {key: text for of in acting for key, text in of.files.items()}
        failed, now = self.state.failed, self._clock()
        # Reading hundreds of files each second costs more than all else.
        if contents != self._contents or now - self._checked_at >= self._check_seconds:
            seen = frozenset().union(*(of.seen for of in acting))
            failed = self._write(contents, seen, wanted)
            self._contents, self._checked_at = contents, now
        would_write = self.state.would_write
        if self._compared_at is None or now - self._compared_at >= CHECK_SECONDS:
            would_write, self._compared_at = self._would_write(wanted), now
        self.state = FeatureState(wanted, failed, would_write)

    def pause(self, reason: str) -> None:
        """Nothing is wanted or given back, for this reason; the next step compares all files."""
        self._contents = None
        self.state = FeatureState(failed=(reason,))

    def hold(self, keys: Collection[Key]) -> None:
        """Takes these files over: the next step gives back those that no feature wants."""
        self.held, self._contents = self.held.union(keys), None

    def release(self, keys: Collection[Key]) -> None:
        """Gives these files back now; the next step writes those that are still wanted."""
        if keys:
            outcome = limits.restore(self._controllers, self._journal, keys)
            failed = tuple(self._reported([outcome], ()))
            self.state = msgspec.structs.replace(self.state, failed=failed)
            self._contents = None

    def fault(self, of: str, failure: Exception) -> str:
        """A sentence about a bug of ours. A new one is logged with the place."""
        text = f"{of} failed: {failure!r}"[:_MOST_TEXT]
        if text != self._faults.get(of):
            self._faults[of] = text
            log.exception("%s", text)
        return text

    def shown(self) -> tuple[ShownFeature, ...]:
        """The features for people."""
        state = self.state
        return tuple(
            ShownFeature(
                name,
                self._modes[name],
                len(of.files),
                of.problem,
                (would := state.would_write.get(name, WouldWrite())).files,
                would.first,
                of.notes,
            )
            for name, of in state.wanted.items()
        )

    def problems(self) -> tuple[str, ...]:
        """What features can't have, and the first writes that failed, in sentences."""
        state = self.state
        cannot = (f"{name}: {of.problem}" for name, of in state.wanted.items() if of.problem)
        return (*cannot, *state.failed[:MOST_NAMED])

    def _wanted(self, feature: Feature[MomentT], moment: MomentT) -> WantedFiles:
        """What the feature wants. One that fails keeps what it has, and the others go on."""
        off = self._modes[feature.name] is FeatureMode.OFF
        try:
            return feature.wanted(self._nothing if off else moment)
        except Exception as failure:  # noqa: BLE001  no annotation ends all features
            last = self.state.wanted.get(feature.name, WantedFiles())
            return WantedFiles(last.files, self.fault(feature.name, failure))

    def _write(
        self,
        wanted: Mapping[Key, str],
        seen: Collection[Key],
        by_feature: Mapping[str, WantedFiles],
    ) -> tuple[str, ...]:
        """Returns the failures that no feature tells.

        `seen`: are files that have what is wanted."""
        weight = limits.weight_file(self._controllers)
        held = {*wanted, *((group, weight) for group, file in wanted if file == limits.IDLE)}
        idle = {
            group
            for group, file in self._journal.files
            if file == limits.IDLE and ((group, file) in self.held or self._concerns(group, file))
        }
        ended = {
            (group, file)
            for group, file in self._journal.files
            if (group, file) not in held
            and (
                (group, file) in self.held
                or self._concerns(group, file)
                or (file == weight and group in idle)
            )
        }
        outcomes = []
        if ended:
            outcomes.append(limits.restore(self._controllers, self._journal, ended))
        if unsure := {key: text for key, text in wanted.items() if key not in seen}:
            outcome = limits.apply_texts(self._controllers, self._journal, unsure)
            outcomes.append(self._untold(outcome, by_feature))
        before, self.held = self.held, frozenset(held)
        return tuple(self._reported(outcomes, before - ended))

    def _untold(self, outcome: ValueOutcome, by_feature: Mapping[str, WantedFiles]) -> ValueOutcome:
        """Tells features the failures of their writes, and returns the other changes."""
        failures = {
            (change.group, change.file): change for change in outcome.having(WriteState.FAILED)
        }
        told: set[Key] = set()
        for feature in self._features if failures else ():
            own = failures.keys() & by_feature[feature.name].files.keys()
            if own and isinstance(feature, TellsRefusals):
                feature.refused({key: failures[key] for key in own})
                told |= own
        untold = (change for change in outcome.changes if (change.group, change.file) not in told)
        return ValueOutcome(tuple(untold), outcome.journal_error)

    def _would_write(self, wanted: Mapping[str, WantedFiles]) -> dict[str, WouldWrite]:
        """Reads the files of the features that observe."""
        would: dict[str, WouldWrite] = {}
        for name, of in wanted.items():
            if self._modes[name] is FeatureMode.OBSERVE:
                unsure = {key: text for key, text in of.files.items() if key not in of.seen}
                writes = limits.differing(self._controllers, unsure)
                first = (f"{one.group} {one.file}: {one.old} -> {one.new}" for one in writes)
                named = tuple(itertools.islice(first, MOST_NAMED))
                would[name] = WouldWrite(len(writes), named)
        return would

    def _reported(self, outcomes: Iterable[ValueOutcome], kept: Collection[Key]) -> Iterator[str]:
        """Logs the writes, and returns the failures.

        `kept`: the files that a feature had before, too. Some quotas change each second."""
        for outcome in outcomes:
            for change in outcome.having(WriteState.WRITTEN):
                level = logging.DEBUG if (change.group, change.file) in kept else logging.INFO
                text = "%s: %s %s -> %s"
                log.log(level, text, change.group, change.file, change.old, change.new)
            for change in outcome.having(WriteState.FAILED):
                yield f"{change.group} {change.file}: {change.note}"
