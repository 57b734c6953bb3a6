"""The values of LinuxResources in the files of a group on cgroup v1 and v2, and their writes: reads
the files, journals the original values, writes in a legal order, reads back; and restores the
original values.

| value  | v1                                              | v2              |
|--------|-------------------------------------------------|-----------------|
| quota  | `cpu.cfs_quota_us`, for `cpu.cfs_period_us`     | `cpu.max`, both |
| shares | `cpu.shares`                                    | `cpu.weight`    |
| memory | `memory.limit_in_bytes`                         | `memory.max`    |
| mems   | `cpuset.mems`                                   | `cpuset.mems`   |

A group's period is kept: a quota is scaled to it. Shares are a weight by the kubelet's formula. The
kernel rounds memory down to pages. Texts have no line end. `cgroup.writer` writes cpusets.

On v1 the pages of a group move with its memory nodes only if `cpuset.memory_migrate` is 1; on v2
they always do.

Nothing that happens on the machine raises an error: a group that vanished, a refused write or a
full disk becomes part of the outcome. The other writes follow a failed one: the kernel refuses
those that depend on it.

* A file whose value means the same already is not written.
* On v1 a child's quota or memory nodes can't exceed its parent's (EINVAL, EACCES, EBUSY). So values
  that grow are written first, from the top down, then values that shrink, from the bottom up.
  Groups that were not requested are never written.
* The kernel refuses a burst above the quota of its group (EINVAL), so the quota is as a parent's.
* With swap accounting, v1 refuses a memory limit above the limit of memory and swap (EINVAL).
  Runtimes set both to the same value when a container may not swap, so the second is raised first.
* A memory limit below the present use is not written: v2 would kill processes, and v1 reclaims for
  half a second before it refuses (EBUSY).
* A change that failed because of the group's own processes, its parent or its other values is
  marked as refused: a pod's author can cause that, and it concerns that pod alone. For example, the
  kernel refuses a quota beyond the parent's (v1), and any weight while `cpu.idle` is set.
* v2 moves pages whenever memory nodes change; v1 does with `migrate`, which is written first. v2
  accepts nodes that the parent does not have; they have no effect, and count as written.
* The groups that pods share belong to the kubelet (pkg/kubelet/cm,
  qos_container_manager_linux.go, UpdateCgroups): values for them fail."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from agent.cgroup import lines
from agent.cgroup.hierarchy import (
    CPUS,
    MEMS,
    OOM_SCORE_ADJ,
    CgroupError,
    Controller,
    Controllers,
    GroupGone,
)
from agent.cgroup.journal import Journal, JournalError, OriginalValue
from agent.cgroup.order import ValueChange, ValueOutcome, WriteState, ancestors, parent
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import (
    LEAST_QUOTA_MICROSECONDS,
    LEAST_SHARES,
    MAX_SHARES,
    NO_QUOTA,
    NO_RESOURCES,
    UNLIMITED,
    CpuQuota,
    LinuxResources,
)
from agent.model.pod.qos import is_qos_root

if TYPE_CHECKING:
    from fractions import Fraction

_REFUSALS = frozenset({errno.EBUSY, errno.EINVAL, errno.ERANGE})
"""Errors for a value that the state of the group does not allow. All other errors are faults."""


class _UnfitValueError(CgroupError):
    """The value was not written, because the state of the group does not allow it."""


class ValueWrite(msgspec.Struct, frozen=True):
    """One write, and the content of the file before all of them."""

    group: str
    file: str
    old: str
    new: str


class LimitsPass:
    """Writes files once: `request` or `request_original` for each file, then `run`, then
    `changes`. Raises no error for what happens on the machine."""

    def __init__(self, controllers: Controllers) -> None:
        self._controllers = controllers
        self._steps: dict[tuple[str, str], ValueWrite] = {}
        self._changes: dict[tuple[str, str], ValueChange] = {}
        self._notes: dict[tuple[str, str], str] = {}
        controllers.look()

    def request(self, group: str, file: str, resources: LinuxResources) -> None:
        """Requests the value that the resources have for the file. On v2 a group for which its
        parent does not enable the controller does not have a limit to remove."""
        try:
            if lifts(resources, file) and self._controllers.read(group, file) is None:
                self._settle(group, file, WriteState.RIGHT)
                return
            old = self._present(group, file)
            new = text(self._controllers, group, file, resources, old)
            self._compare(group, file, old, new)
        except (CgroupError, ValueError) as error:
            self.fail(group, file, error)

    def request_text(self, group: str, file: str, text: str) -> None:
        """Requests this content of the file."""
        try:
            self._compare(group, file, self._present(group, file), text)
        except (CgroupError, ValueError) as error:
            self.fail(group, file, error)

    def request_original(self, entry: OriginalValue) -> None:
        """Requests the original content of the file. That of another program stays. The weight of a
        group that is idle is always written: it shows another, which ends with that."""
        group, file = entry.group, entry.file
        try:
            old = self._present(group, file)
            if file == MEMS and not entry.value and self._controllers.version("cpuset") == 1:
                note = "was empty: its value stays"
                self._settle(group, file, WriteState.RIGHT, old, old, note)
            elif file in (SHARES, WEIGHT) and self._controllers.read(group, IDLE) == "1":
                self._steps[group, file] = ValueWrite(group, file, old, original(entry, old))
            else:
                self._compare(group, file, old, original(entry, old))
        except (CgroupError, ValueError) as error:
            self.fail(group, file, error)

    def steps(self) -> list[ValueWrite]:
        """The writes to be done, by group and file."""
        return list(self._steps.values())

    def fail(self, group: str, file: str, reason: Exception | str) -> None:
        """Records that the file does not get its wanted content, and drops its write."""
        step = self._steps.pop((group, file), None)
        state = WriteState.GONE if isinstance(reason, GroupGone) else WriteState.FAILED
        old = step.old if step else None
        cause = reason.__cause__ if isinstance(reason, CgroupError) else None
        number = cause.errno if isinstance(cause, OSError) else None
        refused = number in _REFUSALS or isinstance(reason, _UnfitValueError)
        self._changes[group, file] = ValueChange(
            group, file, state, old, note=str(reason), refused=refused, errno=number
        )

    def run(self) -> None:
        """Writes in order, and records the content of each file afterwards."""
        for step in _ordered(self.steps(), self._controllers.version("cpuset") == 1):
            if (step.group, step.file) in self._steps:
                try:
                    self._write(step)
                except (CgroupError, ValueError) as error:
                    self.fail(step.group, step.file, error)
        for step in self.steps():
            try:
                self._read_back(step)
            except (CgroupError, ValueError) as error:
                self.fail(step.group, step.file, error)

    def changes(self) -> tuple[ValueChange, ...]:
        """The outcome of all files, sorted."""
        return tuple(self._changes[key] for key in sorted(self._changes))

    def _present(self, group: str, file: str) -> str:
        text = self._controllers.read(group, file)
        if text is None:
            raise CgroupError(f"{group!r} has no {file}")
        return text

    def _compare(self, group: str, file: str, old: str, new: str) -> None:
        if same(file, old, new):
            self._settle(group, file, WriteState.RIGHT, old, old)
        else:
            self._steps[group, file] = ValueWrite(group, file, old, new)

    def _write(self, step: ValueWrite) -> None:
        if step.file in USE and not grows(step.file, step.old, step.new):
            used = int(self._present(step.group, USE[step.file]))
            if used > memory_of(step.new):
                raise _UnfitValueError(f"{step.group!r} uses more than {step.new} bytes")
        if step.file == MEMORY:
            both = self._controllers.read(step.group, MEMORY_AND_SWAP)
            if both is not None and grows(MEMORY, both, step.new):
                self._controllers.write(step.group, MEMORY_AND_SWAP, step.new)
        try:
            self._controllers.write(step.group, step.file, _written(step.file, step.new))
        except CgroupError as error:
            cause = error.__cause__
            clears = step.file in _EFFECTIVE and not step.new
            if not (clears and isinstance(cause, OSError) and cause.errno == errno.ENOSPC):
                raise
            self._write_effective_above(step)

    def _write_effective_above(self, step: ValueWrite) -> None:
        """Writes what the parent has to a v2 group with processes: the kernel (as 6.1) refuses to
        let it inherit again."""
        above = parent(step.group)
        file, what = _EFFECTIVE[step.file]
        effective = self._present(above, file)
        self._controllers.write(step.group, step.file, effective)
        self._steps[step.group, step.file] = msgspec.structs.replace(step, new=effective)
        self._notes[step.group, step.file] = f"is used, so it got every {what} of {above!r}"

    def _read_back(self, step: ValueWrite) -> None:
        group, file = step.group, step.file
        now = self._present(group, file)
        if not same(file, now, step.new):
            raise CgroupError(f"'{step.new}' was written to {file}, '{now}' read back")
        del self._steps[group, file]
        self._settle(group, file, WriteState.WRITTEN, step.old, now, self._notes.get((group, file)))

    def _settle(
        self,
        group: str,
        file: str,
        state: WriteState,
        old: str | None = None,
        new: str | None = None,
        note: str | None = None,
    ) -> None:
        self._changes[group, file] = ValueChange(group, file, state, old, new, note)


def _ordered(steps: list[ValueWrite], nested: bool) -> Iterator[ValueWrite]:
    """First the files that others depend on, then values that grow, from the top, then values that
    shrink, from the bottom. What a partition gives back is written before all others, because a
    group that inherits again may get what is in force above it; what it takes is written after
    them: who has its CPUs leaves first.

    `nested`: a group's memory nodes and CPUs must contain those of every group in it, as on v1. If
    a group gets others and a group below it changes too, it has the old and the new ones until that
    group has changed.
    """
    top_down = sorted(
        steps, key=lambda step: (step.group.count("/"), step.group, step.file in _LAST)
    )
    of_partitions = [step for step in top_down if step.file in (EXCLUSIVE, PARTITION)]
    yield from sorted(
        (step for step in reversed(of_partitions) if not _takes(step)),
        key=lambda step: step.file == EXCLUSIVE,
    )
    top_down = [step for step in top_down if step not in of_partitions]
    above = {
        (ancestor, step.file)
        for step in steps
        if step.file in _EFFECTIVE
        for ancestor in ancestors(step.group)
    }
    shrinking = []
    yield from (step for step in top_down if step.file == MIGRATE)
    for step in top_down:
        if step.file == MIGRATE:
            continue
        if not grows(step.file, step.old, step.new):
            shrinking.append(step)
        elif nested and (step.group, step.file) in above:
            both = _both(step)
            if both != nodes(step.new):
                shrinking.append(step)
            yield msgspec.structs.replace(step, new=str(both))
        else:
            yield step
    yield from reversed(shrinking)
    yield from sorted(filter(_takes, of_partitions), key=lambda step: step.file == PARTITION)


def _takes(step: ValueWrite) -> bool:
    """Whether a partition takes CPUs from others with this write."""
    if step.file == PARTITION:
        return step.new in (ISOLATED, PARTITION_ROOT)
    return grows(step.file, step.old, step.new)


def _both(step: ValueWrite) -> CpuSet:
    """The old and the new CPUs or nodes."""
    return nodes(step.old) | nodes(step.new)


def apply(
    controllers: Controllers,
    journal: Journal,
    wanted: Mapping[str, LinuxResources],
    *,
    migrate: bool = False,
) -> ValueOutcome:
    """Gives each group its values, except its cpuset. Journals the value of a file before its first
    write. If all values are correct, this costs one read of each file (for a v1 quota a second, of
    its period) and no write. If the journal can't be written, no other file is written.

    `migrate`: on v1, the pages of a group move when its memory nodes change."""
    pass_ = LimitsPass(controllers)
    for group, resources in sorted(wanted.items()):
        shared = group == "/" or is_qos_root(group)
        for file in files(controllers, resources, migrate=migrate):
            if shared:
                pass_.fail(group, file, f"{group!r} is shared by pods, and the kubelet's own")
            else:
                pass_.request(group, file, resources)
    try:
        _journal_originals(controllers, journal, pass_)
    except JournalError as error:
        for step in pass_.steps():
            pass_.fail(step.group, step.file, str(error))
    pass_.run()
    return ValueOutcome(pass_.changes())


def apply_texts(
    controllers: Controllers, journal: Journal, wanted: Mapping[tuple[str, str], str]
) -> ValueOutcome:
    """Writes these contents of files of groups, in the way of `apply`. The kernel resets the weight
    of a group that is idle no more, so that is journalled with `cpu.idle`. `oom_score_adj` is
    written to the processes of a group, and a file may be the name of a value (`lines`). Of the
    groups that pods share, only the quota, what protects memory and what is about disks are
    written; of the group of the machine only the cost of disks."""
    pass_ = LimitsPass(controllers)
    weights, scores = set(), {}
    for (group, file), content in sorted(wanted.items()):
        written = _OF_MACHINE if group == "/" else _OF_SHARED
        shared = group == "/" or is_qos_root(group)
        if shared and lines.file_of(file) not in written and not is_of_quiet(file):
            pass_.fail(group, file, f"{group!r} is shared by pods, and the kubelet's own")
        elif file == OOM_SCORE_ADJ:
            scores[group] = content
        else:
            pass_.request_text(group, file, content)
            weights |= {group} if file == IDLE else set()
    try:
        _journal_weights(controllers, journal, weights)
        _journal_originals(controllers, journal, pass_)
    except JournalError as error:
        for step in pass_.steps():
            pass_.fail(step.group, step.file, str(error))
    pass_.run()
    if not scores:
        return _outcome(pass_, ())
    from agent.cgroup import oom_scores  # most nodes have none

    return _outcome(pass_, oom_scores.apply(controllers, journal, scores))


def _outcome(pass_: LimitsPass, of_processes: Iterable[ValueChange]) -> ValueOutcome:
    changes = (*pass_.changes(), *of_processes)
    return ValueOutcome(tuple(sorted(changes, key=lambda change: (change.group, change.file))))


def differing(controllers: Controllers, wanted: Mapping[tuple[str, str], str]) -> list[ValueWrite]:
    """What `apply_texts` would write, by group and file; a file that can't be read is left out.
    Writes nothing."""
    pass_ = LimitsPass(controllers)
    scores = {}
    for (group, file), content in sorted(wanted.items()):
        if file == OOM_SCORE_ADJ:
            scores[group] = content
        else:
            pass_.request_text(group, file, content)
    steps = list(pass_.steps())
    if scores:
        from agent.cgroup import oom_scores

        steps += (
            ValueWrite(group, OOM_SCORE_ADJ, old, scores[group])
            for group, old in oom_scores.differing(controllers, scores)
        )
    return sorted(steps, key=lambda step: (step.group, step.file))


def concerns_more(group: str, file: str) -> bool:
    """Whether the value concerns more than one pod."""
    return file == SCHEMATA or is_of_quiet(file) or group == "/" or is_qos_root(group)


def weight_file(controllers: Controllers) -> str:
    """The file with the weight of a group."""
    return SHARES if controllers.version("cpu") == 1 else WEIGHT


def _journal_weights(controllers: Controllers, journal: Journal, groups: Collection[str]) -> None:
    """Raises JournalError."""
    file = weight_file(controllers)
    new = []
    entries = journal.values  # sorted at each read
    for group in groups:
        entry = entries.get((group, file))
        if entry is not None and not entry.written:
            continue
        with contextlib.suppress(CgroupError):  # the write of cpu.idle fails too
            if (present := controllers.read(group, file)) is not None:
                value = present if entry is None else original(entry, present)
                new.append(OriginalValue(group, file, value))
    journal.update_values(new, [(each.group, each.file) for each in new])


def restore(
    controllers: Controllers, journal: Journal, only: Collection[tuple[str, str]] | None = None
) -> ValueOutcome:
    """Restores the original value of every journalled file, or of those in `only` (group and name),
    and removes the restored entries. What another program has written since the agent did, as a
    kubelet does with every resize, is the original. Empty memory nodes become empty again on v2;
    when the kernel refuses that, they become those of the parent, and the note says so. On v1 such
    a group keeps its nodes."""
    pass_ = LimitsPass(controllers)
    of_processes = []
    for key, entry in journal.values.items():
        if only is not None and key not in only:
            continue
        if entry.file == OOM_SCORE_ADJ:
            of_processes.append(entry)
        else:
            pass_.request_original(entry)
    pass_.run()
    scores: Iterable[ValueChange] = ()
    if of_processes:
        from agent.cgroup import oom_scores

        scores = oom_scores.restore(controllers, of_processes)
    changes = _outcome(pass_, scores).changes
    settled = [(each.group, each.file) for each in changes if each.state is not WriteState.FAILED]
    try:
        journal.update_values((), settled)
    except JournalError as error:
        return ValueOutcome(changes, str(error))
    return ValueOutcome(changes)


def original(entry: OriginalValue, present: str) -> str:
    """The content that the file would have without the agent: the journalled one, or the present
    one if another program has written that since. Raises CgroupError."""
    own = (entry.value, *entry.written)
    try:
        by_agent = not entry.written or _is_one(entry.file, present, own)
    except ValueError as error:
        message = f"cannot understand {entry.file} of {entry.group!r}: {error}"
        raise CgroupError(message) from error
    return entry.value if by_agent else present


def _is_one(file: str, present: str, own: Collection[str]) -> bool:
    """Whether the content is one of these. Processes that enter a cgroup are in another group of
    resctrl, or of core scheduling, than those that were moved. The kernel adds to `isolated` that,
    and why, a partition is invalid. Raises ValueError."""
    if file == PARTITION:
        return present.partition(" ")[0] in own
    if file in (RESCTRL_GROUP, CORE_GROUP):
        return {*present.split(",")} <= {*",".join(own).split(",")}
    return any(same(file, present, each) for each in own)


def _journal_originals(controllers: Controllers, journal: Journal, pass_: LimitsPass) -> None:
    """Journals the values that the writes replace, and those that they write. Raises
    JournalError."""
    entries = journal.values
    changed = []
    for step in pass_.steps():
        entry = entries.get((step.group, step.file))
        try:
            new = _entry(step, entry)
        except CgroupError as error:
            pass_.fail(step.group, step.file, error)
        else:
            changed += [new] if new != entry else []
    replaced = [(each.group, each.file) for each in changed]
    if not entries.keys() >= set(replaced):
        replaced += [key for key in entries if not controllers.has(*key)]
    journal.update_values(changed, replaced)


def _entry(step: ValueWrite, before: OriginalValue | None) -> OriginalValue:
    """The entry of a file before this write. A write that fails leaves the old content. Raises
    CgroupError."""
    value = step.old if before is None else original(before, step.old)
    # The kernel changes nodes and caches when it loses some, and a write may have a step between.
    kept = step.file not in (MEMS, MIGRATE, SCHEMATA)
    written = [step.old, step.new] if kept else []
    if step.file == SLICE_CPUS:
        written.append(str(_both(step)))
    return OriginalValue(
        step.group, step.file, value, tuple(each for each in written if each != value)
    )


QUOTA: Final = "cpu.cfs_quota_us"
PERIOD: Final = "cpu.cfs_period_us"
SHARES: Final = "cpu.shares"
MEMORY: Final = "memory.limit_in_bytes"
MEMORY_AND_SWAP: Final = "memory.memsw.limit_in_bytes"
MAX: Final = "cpu.max"
WEIGHT: Final = "cpu.weight"
MEMORY_MAX: Final = "memory.max"
USE: Final = {MEMORY: "memory.usage_in_bytes", MEMORY_MAX: "memory.current"}
"""By the file of a memory limit: the file with the bytes in use."""
MIGRATE: Final = "cpuset.memory_migrate"
_MOVES: Final = "1"

_ALL_MEMORY: Final = 2**63 - 2**20
"""A group without a limit has the largest number of whole pages on v1, which is at least this."""
_ENDLESS: Final = 2**64
_MAX_WEIGHT: Final = 10_000


def parsed(controllers: Controllers, group: str, texts: Mapping[str, str]) -> LinuxResources:
    """The values that these contents of the group's files mean. A v2 weight means the fewest shares
    that give it. Raises CgroupError, GroupGone."""
    values = {}
    for name in _FILES.keys() & texts.keys():
        file = _FILES[name]
        try:
            values[file.value] = file.parsed(_with_period(controllers, group, name, texts[name]))
        except ValueError as error:
            raise CgroupError(f"cannot understand {name} of {group!r}: {error}") from error
    return msgspec.structs.replace(NO_RESOURCES, **values)


def files(
    controllers: Controllers, resources: LinuxResources, *, migrate: bool = False
) -> Iterator[str]:
    """The files of the values that are set, without those whose controller the machine does not
    have.

    `migrate`: also the file that lets pages move with memory nodes."""
    for name, file in _FILES.items():
        version = controllers.version(file.controller)
        if version in file.versions and getattr(resources, file.value) is not None:
            yield name
            if migrate and name == MEMS and version == 1:
                yield MIGRATE


def lifts(resources: LinuxResources, file: str) -> bool:
    """Whether the resources lift the limit of this file."""
    if file not in _FILES:
        return False
    value = _FILES[file].value
    return getattr(resources, value) in (NO_QUOTA, UNLIMITED)


def text(
    controllers: Controllers, group: str, file: str, resources: LinuxResources, old: str
) -> str:
    """The wanted content of the file, whose content is `old`. Raises CgroupError, ValueError."""
    if file == MIGRATE:
        return _MOVES
    value = getattr(resources, _FILES[file].value)
    if file == MEMS and not value and controllers.version("cpuset") == 1:
        raise ValueError("no memory nodes are wanted, and cgroup v1 can't inherit")
    return _FILES[file].text(value, _with_period(controllers, group, file, old))


def _with_period(controllers: Controllers, group: str, file: str, text: str) -> str:
    """The content of a quota's file as in `cpu.max`, which has the period too. Raises CgroupError,
    GroupGone."""
    if file != QUOTA:
        return text
    period = controllers.read(group, PERIOD)
    if period is None:
        raise CgroupError(f"{group!r} has no {PERIOD}")
    return f"{text} {period}"


def quota_text(quota: CpuQuota, present: str) -> str:
    """The content of `cpu.cfs_quota_us`.

    `present`: the present quota and period.

    Raises ValueError."""
    scaled = _scaled(quota, _parts(present)[1])
    return str(UNLIMITED if scaled is None else scaled)


def max_text(quota: CpuQuota, present: str) -> str:
    """The content of `cpu.max`, whose content is `present`. Raises ValueError."""
    period = _parts(present)[1]
    scaled = _scaled(quota, period)
    return f"{'max' if scaled is None else scaled} {period}"


def quota_of(text: str) -> CpuQuota:
    """From quota and period. Raises ValueError."""
    quota, period = _parts(text)
    return NO_QUOTA if quota is None else CpuQuota(quota, period)


def weight(shares: int) -> int:
    """The v2 weight of v1 shares (kubelet: pkg/kubelet/cm/cgroup_manager_linux.go,
    getCPUWeight)."""
    bound = min(max(shares, LEAST_SHARES), MAX_SHARES)
    return 1 + (bound - LEAST_SHARES) * (_MAX_WEIGHT - 1) // (MAX_SHARES - LEAST_SHARES)


def shares_of_weight(text: str) -> int:
    """The fewest shares that give this weight. Raises ValueError."""
    steps = max(int(text), 1) - 1
    return LEAST_SHARES - (-steps * (MAX_SHARES - LEAST_SHARES) // (_MAX_WEIGHT - 1))


def memory_of(text: str) -> int:
    """In bytes, UNLIMITED for no limit. Raises ValueError."""
    if text == "max":
        return UNLIMITED
    limit = int(text)
    return UNLIMITED if limit < 0 or limit >= _ALL_MEMORY else limit


def same(file: str, one: str, other: str) -> bool:
    """Whether two contents of this file mean the same. Raises ValueError for an invalid one."""
    return one == other or _amount(file, one) == _amount(file, other)


def grows(file: str, old: str, new: str) -> bool:
    """Whether the group gets more, so that its parent must be written first: for NUMA nodes, if any
    is added, or if it inherits (v2). Raises ValueError."""
    if file == MEMS and not new:
        return True
    return not _amount(file, new) <= _amount(file, old)


def _amount(file: str, text: str) -> Any:
    if file == MIGRATE:
        return int(text)
    if is_of_strategies(file):
        return _TEXTS[lines.file_of(file)](text)
    if file not in _FILES:
        raise ValueError(f"{file!r} is not a file of limits")
    return _FILES[file].amount(text)


def _quota_amount(text: str) -> int:
    quota = int(text)
    return _ENDLESS if quota < 0 else quota


def _max_amount(text: str) -> Fraction | int:
    from fractions import Fraction  # most nodes compare none: 0.1 MB

    quota, period = _parts(text)
    return _ENDLESS if quota is None else Fraction(quota, period)


def _shares_amount(text: str) -> int:
    return min(max(int(text), LEAST_SHARES), MAX_SHARES)


def _memory_amount(text: str) -> int:
    limit = memory_of(text)
    return _ENDLESS if limit == UNLIMITED else limit // resource.getpagesize()


@lru_cache(maxsize=256)
def nodes(text: str) -> CpuSet:
    """NUMA nodes as a Linux list. Raises CpuSetError, a ValueError."""
    return CpuSet.parse(text)


def _scaled(quota: CpuQuota, period: int) -> int | None:
    """The quota for another period, None for no limit."""
    if quota == NO_QUOTA:
        return None
    scaled = -(-quota.microseconds * period // quota.period_microseconds)
    return max(LEAST_QUOTA_MICROSECONDS, scaled)


def _parts(text: str) -> tuple[int | None, int]:
    """Quota and period, as `cpu.max` has them."""
    quota, _, period = text.partition(" ")
    length = int(period)
    if length < 1:
        raise ValueError(f"{text!r} has no period")
    return (None if quota == "max" or int(quota) < 0 else int(quota)), length


def _plain_text(value: object, present: str) -> str:
    return str(value)


def _weight_text(shares: int, present: str) -> str:
    return str(weight(shares))


def _memory_max_text(limit_bytes: int, present: str) -> str:
    return "max" if limit_bytes == UNLIMITED else str(limit_bytes)


def _less(text: str) -> int:
    """A group that is idle gets less, and so does one whose quota is for a longer period."""
    return -int(text)


def _disk_amount(text: str) -> int:
    return _ENDLESS if text in ("", "0", "max") else int(text)


def _disk_weight_amount(text: str) -> int:
    """0 for the weight that the group has on all disks."""
    return 0 if text in ("", "default") else int(text)


def _cost_amount(text: str) -> frozenset[tuple[str, float]]:
    """The parameters that are in force; those that the kernel chooses (`ctrl=auto`) are none."""
    values = dict(word.split("=", 1) for word in _written(IO_COST_QOS, text).split() if "=" in word)
    if values.get("enable") == "0":
        return frozenset()
    return frozenset((name, float(values[name])) for name in values.keys() - {"ctrl", "model"})


def _written(file: str, text: str) -> str:
    """What the write of this content says. The kernel takes every parameter of a cost as the
    user's, also one that it has chosen itself."""
    name = lines.file_of(file)
    if name in _COSTS and "ctrl=auto" in text.split():
        return " ".join(word for word in text.split() if word.startswith(("enable=", "ctrl=")))
    return text or _UNSET.get(name, "")


IDLE: Final = "cpu.idle"
BVT: Final = "cpu.bvt_warp_ns"
BURST: Final = "cpu.cfs_burst_us"
MAX_BURST: Final = "cpu.max.burst"
_LAST: Final = (PERIOD, BURST, MAX_BURST)
"""They follow the quota of their group where both grow."""
MEMORY_MIN: Final = "memory.min"
MEMORY_LOW: Final = "memory.low"
MEMORY_HIGH: Final = "memory.high"
OOM_GROUP: Final = "memory.oom.group"
_OF_ANOLIS: Final = (
    "memory.wmark_ratio",
    "memory.wmark_scale_factor",
    "memory.wmark_min_adj",
    "memory.priority",
    "memory.use_priority_oom",
)
"""Files of Alibaba's kernel that only a koordlet sets."""
RESCTRL_GROUP: Final = "resctrl.group"
SCHEMATA: Final = "resctrl.schemata"
"""Both are of `cgroup.resctrl`. A group is made before tasks move to it, and is removed after they
have moved back."""
IO_MAX: Final = "io.max"
_THROTTLES: Final = (
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
)
IO_WEIGHT: Final = "io.weight"
IO_BFQ_WEIGHT: Final = "io.bfq.weight"
BLKIO_WEIGHT: Final = "blkio.cost.weight"
BLKIO_BFQ_WEIGHT: Final = "blkio.bfq.weight_device"
_DISK_WEIGHTS: Final = (IO_WEIGHT, IO_BFQ_WEIGHT, BLKIO_WEIGHT, BLKIO_BFQ_WEIGHT)
IO_COST_QOS: Final = "io.cost.qos"
IO_COST_MODEL: Final = "io.cost.model"
BLKIO_COST_QOS: Final = "blkio.cost.qos"
BLKIO_COST_MODEL: Final = "blkio.cost.model"
_COSTS: Final = (IO_COST_QOS, IO_COST_MODEL, BLKIO_COST_QOS, BLKIO_COST_MODEL)
_UNSET: Final[Mapping[str, str]] = {
    IO_MAX: "max",
    **dict.fromkeys(_THROTTLES, "0"),
    **dict.fromkeys(_DISK_WEIGHTS, "default"),
    IO_COST_QOS: "enable=0 ctrl=auto",
    BLKIO_COST_QOS: "enable=0 ctrl=auto",
    IO_COST_MODEL: "ctrl=auto",
    BLKIO_COST_MODEL: "ctrl=auto",
}
"""What takes the value of a disk away."""
CORE_GROUP: Final = "core_sched.group"
"""It is of `cgroup.core_scheduling`."""
IRQ_AFFINITY: Final = "irq.affinity"
IRQ_DEFAULT: Final = "irq.default_affinity"
WORKQUEUE_CPUS: Final = "workqueue.cpus"
RPS_CPUS: Final = "queue.rps_cpus"
XPS_CPUS: Final = "queue.xps_cpus"
RESUME_LATENCY: Final = "pm_qos.resume_latency_us"
GOVERNOR: Final = "cpufreq.governor"
KINDS_OF_MACHINE: Final = ("irq", "workqueue", "queue", "pm_qos", "cpufreq")
"""The first words of the names of files of the machine (`cgroup.machine_files`)."""
PARTITION: Final = "cpuset.cpus.partition"
ISOLATED: Final = "isolated"
PARTITION_ROOT: Final = "root"
EXCLUSIVE: Final = "cpuset.cpus.exclusive"
LOAD_BALANCE: Final = "cpuset.sched_load_balance"
SLICE_CPUS: Final = "slice.cpus"
"""The CPUs of a group of the host (`host_slices`)."""
_EFFECTIVE: Final = {
    MEMS: ("cpuset.mems.effective", "node"),
    CPUS: ("cpuset.cpus.effective", "CPU"),
    SLICE_CPUS: ("cpuset.cpus.effective", "CPU"),
}
"""By a file from which a v2 group inherits while it is empty: the file with what is in force, and
what is in it."""
IRQBALANCE_BANNED: Final = "irqbalance.banned_cpus"
"""It is of `cgroup.irqbalance`."""
_OF_QUIET: Final[Mapping[str, Callable[[str], Any]]] = {
    CPUS: nodes,  # of a partition: passes write the cpusets of containers in their own way
    PARTITION: str,
    EXCLUSIVE: nodes,
    LOAD_BALANCE: int,
    SLICE_CPUS: nodes,
    IRQ_AFFINITY: nodes,
    IRQ_DEFAULT: nodes,
    WORKQUEUE_CPUS: nodes,
    RPS_CPUS: nodes,
    XPS_CPUS: nodes,
    IRQBALANCE_BANNED: nodes,
    RESUME_LATENCY: str,
    GOVERNOR: str,
}
"""What two contents are compared by."""
_TEXTS: Final[Mapping[str, Callable[[str], Any]]] = {
    IDLE: _less,
    PERIOD: _less,
    BVT: int,
    BURST: int,
    MAX_BURST: int,
    MEMORY_MIN: _memory_amount,
    MEMORY_LOW: _memory_amount,
    MEMORY_HIGH: _memory_amount,
    OOM_GROUP: int,
    **dict.fromkeys(_OF_ANOLIS, int),
    RESCTRL_GROUP: str,
    SCHEMATA: str,
    IO_MAX: _disk_amount,
    **dict.fromkeys(_THROTTLES, _disk_amount),
    **dict.fromkeys(_DISK_WEIGHTS, _disk_weight_amount),
    **dict.fromkeys(_COSTS, _cost_amount),
    CORE_GROUP: str,
    **_OF_QUIET,
}
"""The files that only strategies and features of quiet CPUs set: what two contents are compared
by."""
_OF_SHARED: Final = frozenset({QUOTA, PERIOD, MAX, MEMORY_MIN, MEMORY_LOW, IO_MAX, *_DISK_WEIGHTS})
"""The files that strategies set on groups that pods share."""
_OF_MACHINE: Final = frozenset(_COSTS)


def is_of_strategies(file: str) -> bool:
    """Whether only strategies set this file, or this value in a file."""
    return file == OOM_SCORE_ADJ or lines.file_of(file) in _TEXTS


def is_of_quiet(file: str) -> bool:
    """Whether only the features of quiet CPUs write this file."""
    return file in _OF_QUIET


def is_of_colocation(group: str, file: str) -> bool:
    """Whether only the features of colocation write this file of the group."""
    if is_of_quiet(file):
        return False
    return is_of_strategies(file) or concerns_more(group, file)


class _File(NamedTuple):
    """How a file has a value."""

    value: str
    """The field of LinuxResources."""
    controller: Controller
    versions: tuple[Literal[1, 2], ...]
    parsed: Callable[[str], object]
    text: Callable[[Any, str], str]
    """From the value and the present content."""
    amount: Callable[[str], Any]
    """From a content: what two contents are compared by."""


_FILES: Final = {
    QUOTA: _File("quota", "cpu", (1,), quota_of, quota_text, _quota_amount),
    MAX: _File("quota", "cpu", (2,), quota_of, max_text, _max_amount),
    SHARES: _File("shares", "cpu", (1,), int, _plain_text, _shares_amount),
    WEIGHT: _File("shares", "cpu", (2,), shares_of_weight, _weight_text, int),
    MEMORY: _File("memory_limit_bytes", "memory", (1,), memory_of, _plain_text, _memory_amount),
    MEMORY_MAX: _File(
        "memory_limit_bytes", "memory", (2,), memory_of, _memory_max_text, _memory_amount
    ),
    MEMS: _File("mems", "cpuset", (1, 2), str, _plain_text, nodes),
}
