"""Interrupts leave the CPUs of owners: the affinities of all that have one, that of interrupts that
come later, and the CPUs that irqbalance may use (Documentation/core-api/irq/irq-affinity.rst).

Other programs and drivers write the same files, and interrupts come and go: each is looked at
within two seconds. The kernel refuses to move some: those that it manages itself (EIO, EPERM), as
those of NVMe queues and the timer, and those for which the CPUs have no free vector (ENOSPC). The
agent tells these, and tries to move them again each minute.

Without interrupt remapping (x86) the kernel moves an interrupt of a device when it next occurs
(kernel/irq/migration.c): that of an idle device comes once more to where it was. No file makes it
occur earlier. The agent tells these until `effective_affinity_list` shows that they have left."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from agent.allocate.quiet.interrupts import InterruptRules, interrupt_rules, wanted_affinity
from agent.cgroup import irqbalance, limits
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone, Handles
from agent.cgroup.journal import Journal, JournalError, OriginalValue
from agent.cgroup.limits import IRQ_AFFINITY, IRQ_DEFAULT, IRQBALANCE_BANNED
from agent.cgroup.order import ValueChange
from agent.host import files
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError
from agent.node.features import MOST_NAMED, Key, WantedFiles
from agent.node.quiet.moment import QuietMoment
from agent.view.format import count

RETRY_SECONDS: Final = 60.0
"""So often what was refused is tried again."""
_ASK_SECONDS: Final = 5.0
"""So often irqbalance is asked."""
_AT_ONCE: Final = 256
"""Of more interrupts, every other one is looked at each second."""
_EFFECTIVE_AT_ONCE: Final = 64
"""The agent reads each second of so many moved interrupts whether they have left."""
_DEFAULT: Final[Key] = ("/", IRQ_DEFAULT)
_NO_NODE: Final = -1
_MOST_TEXT: Final = 1 << 16
_MOST_NAME: Final = 32
_CONFINED: Final = "owners who want no interrupts have all CPUs of this node"
_MANAGED: Final = "the kernel manages them itself"
_REASONS: Final = {
    errno.EIO: _MANAGED,
    errno.EPERM: _MANAGED,
    errno.ENOSPC: "other CPUs have no free interrupt vectors",
}


class _Refusal(NamedTuple):
    """A write that the kernel refused."""

    text: str
    reason: str
    at: float
    on: CpuSet
    """Where the interrupt runs."""


class _Interrupt:
    """A numbered interrupt, or those that come later, as they were when they were looked at last.

    `folder`: is that of the interrupt."""

    __slots__ = (
        "content",
        "decided",
        "entry",
        "folder",
        "key",
        "node",
        "path",
        "refusal",
        "text",
        "waits",
        "wanted",
    )

    def __init__(self, key: Key, folder: str) -> None:
        self.key = key
        self.folder = folder
        self.path = f"{folder}/smp_affinity_list"
        self.content = b""
        """What the file has."""
        self.text: str | None = None
        """None for one without an affinity, as that of a single CPU."""
        self.node = _NO_NODE
        self.refusal: _Refusal | None = None
        self.decided: str | None = None
        """The content for which `wanted` is right, with `entry`."""
        self.entry: OriginalValue | None = None
        self.wanted = ""
        """Empty if it stays as it would be without the agent."""
        self.waits = False
        """Whether it has the affinity that is wanted, and is still where it was before."""

    @property
    def name(self) -> str:
        """With the device, which the kernel has as a folder (kernel/irq/proc.c)."""
        if self.key == _DEFAULT:
            return "those that come later"
        number = self.key[0][1:]
        try:
            with os.scandir(self.folder) as entries:
                devices = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError:
            devices = []
        return f"{devices[0][:_MOST_NAME]} ({number})" if devices else number

    def read_node(self) -> None:
        try:
            self.node = int(files.read(f"{self.folder}/node", _MOST_TEXT))
        except (OSError, ValueError):
            self.node = _NO_NODE

    def effective(self) -> CpuSet:
        """The CPUs that the controller of interrupts uses; none for an interrupt that is not in
        use."""
        for name in ("effective_affinity_list", "smp_affinity_list"):
            try:
                text = files.read(f"{self.folder}/{name}", _MOST_TEXT)
                return CpuSet.parse(text.decode("ascii", "replace").strip())
            except (OSError, CpuSetError):
                continue
        return EMPTY


class QuietInterrupts:
    """`root`: is where the host's files are.
    `controllers`: read the default affinity and irqbalance.
    `journal`: has the original affinities."""

    name = "interrupts"

    def __init__(
        self,
        root: str,
        controllers: Controllers,
        journal: Journal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._folder = os.path.join(root, "proc/irq")
        self._controllers = controllers
        self._journal = journal
        self._clock = clock
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._handles = Handles(soft // 4)  # those of cgroups have half of the limit
        self._turn = 0
        self._forget()

    def _forget(self) -> None:
        self._handles.close()
        self._rules = InterruptRules()
        self._nodes: Mapping[int, CpuSet] = {}
        self._by_original: dict[tuple[str, int], str] = {}
        self._later = _Interrupt(_DEFAULT, self._folder)
        self._interrupts: dict[str, _Interrupt] = {}
        self._files: dict[Key, str] = {}
        self._seen: set[Key] = set()
        self._refused: dict[Key, _Interrupt] = {}
        self._moved: dict[Key, tuple[float, _Interrupt]] = {}
        self._leaving: dict[Key, _Interrupt] = {}
        self._balancers: dict[Key, str] = {}
        self._told: set[Key] = set()
        self._untold = ""
        self._ask_at = -math.inf

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        topology = moment.topology
        if topology is None or not moment.quiet(self.name):
            self._forget()
            return WantedFiles()
        owners = ((owner.cpus, owner.wishes.housekeeping) for owner in moment.asking(self.name))
        rules = interrupt_rules(topology, owners, moment.left(self.name))
        if rules.confined:
            self._forget()
            return WantedFiles(problem=f"{_CONFINED}, so interrupts stay on them")
        nodes = {node.id: node.cpus for node in topology.numa_nodes}
        changed = (rules, nodes) != (self._rules, self._nodes)
        if changed:
            self._rules, self._nodes = rules, nodes
            self._by_original = {}
            self._ask_at = -math.inf
        now = self._clock()
        problem = ""
        try:
            looked_at = self._look()
        except OSError as error:
            looked_at, problem = [], files.reason(error)
        except JournalError as error:
            looked_at, problem = [], str(error)
        for interrupt in list(self._interrupts.values()) if changed else looked_at:
            self._decide(interrupt, changed, now)
        self._decide(self._later, changed, now)
        self._look_at_leaving()
        self._follow_balancers(now)
        return WantedFiles(
            {**self._files, **self._balancers},
            "; ".join(filter(None, (problem, *self._problems()))),
            tuple(self._notes(now)),
            self._seen | self._told,
        )

    def refused(self, failures: Mapping[Key, ValueChange]) -> None:
        """What the kernel refused stays as it is until it is tried again; so does irqbalance."""
        now = self._clock()
        for (group, file), change in failures.items():
            if file == IRQBALANCE_BANNED:
                self._untold = change.note or ""
                self._told.add((group, file))
                self._ask_at = now + RETRY_SECONDS
                continue
            interrupt = self._later if group == "/" else self._interrupts.get(group[1:])
            if interrupt is not None:
                reason = os.strerror(change.errno) if change.errno else change.note or ""
                reason = _REASONS.get(change.errno or 0, reason)
                on = interrupt.effective()
                interrupt.refusal = _Refusal(interrupt.wanted, reason, now, on)
                self._refused[interrupt.key] = interrupt
                self._decide(interrupt, False, now)

    def _look(self) -> list[_Interrupt]:
        """Lists the interrupts, and reads those whose turn it is, and new ones. Returns them.
        Raises OSError, JournalError."""
        with contextlib.suppress(CgroupError):
            self._later.text = self._controllers.read(*_DEFAULT)
        numbers = {name for name in os.listdir(self._folder) if name.isdecimal()}
        first = not self._interrupts
        for number in self._interrupts.keys() - numbers:
            self._drop(gone := self._interrupts.pop(number))
            self._refused.pop(gone.key, None)
        turns = 1 if len(self._interrupts) <= _AT_ONCE else 2
        self._turn += 1
        looked_at = list(self._interrupts.values())[self._turn % turns :: turns]
        come = [interrupt for interrupt in looked_at if not self._read(interrupt)]
        for number in sorted(numbers - self._interrupts.keys(), key=int):
            interrupt = _Interrupt((f"/{number}", IRQ_AFFINITY), f"{self._folder}/{number}")
            self._interrupts[number] = interrupt
            interrupt.read_node()
            self._read(interrupt)
            come.append(interrupt)
            looked_at.append(interrupt)
        if come and not first:
            self._adopt(come)
        return looked_at

    def _read(self, interrupt: _Interrupt) -> bool:
        """Whether it is the one that was read before."""
        for same in (True, False):
            try:
                content = self._handles.read(interrupt.path)
            except OSError:
                # Another interrupt may have got the number.
                interrupt.decided = interrupt.refusal = None
                self._refused.pop(interrupt.key, None)
                self._seen.discard(interrupt.key)
                interrupt.read_node()
            else:
                if content != interrupt.content:
                    interrupt.content = content
                    interrupt.text = content.decode("ascii", "replace").strip()
                return same
        interrupt.content, interrupt.text = b"", None
        return True

    def _adopt(self, interrupts: Iterable[_Interrupt]) -> None:
        """Journals what new interrupts would have without the default affinity that the agent has
        written. Raises JournalError."""
        default = self._journal.value(*_DEFAULT)
        if default is None:
            return
        originals = []
        for interrupt in interrupts:
            came_with = {str(self._initial(text, interrupt)) for text in default.written}
            if interrupt.text in came_with and interrupt.key not in self._journal:
                value = str(self._initial(default.value, interrupt))
                originals.append(OriginalValue(*interrupt.key, value, (interrupt.text,)))
        self._journal.update_values(originals)

    def _initial(self, default: str, interrupt: _Interrupt) -> CpuSet:
        """The affinity of a new interrupt (kernel/irq/manage.c, irq_setup_affinity)."""
        cpus = CpuSet.parse(default) & self._rules.online
        return cpus & self._nodes.get(interrupt.node, EMPTY) or cpus

    def _decide(self, interrupt: _Interrupt, changed: bool, now: float) -> None:
        """`changed`: the rules have changed."""
        key, text = interrupt.key, interrupt.text
        if text is None:
            self._drop(interrupt)
            return
        entry = self._journal.value(*key)
        new = changed or text is not interrupt.decided or entry is not interrupt.entry
        if not new and interrupt.refusal is None:
            return
        if new:
            interrupt.wanted = self._affinity(interrupt.node, text, entry)
            interrupt.decided, interrupt.entry = text, entry
        wanted = interrupt.wanted
        if (refusal := interrupt.refusal) is not None:
            if wanted != refusal.text or wanted == text:
                interrupt.refusal = None
                del self._refused[key]
            elif now - refusal.at < RETRY_SECONDS:
                # What an earlier write has brought stays.
                wanted = text if entry is not None and entry.value != text else ""
        if not wanted:
            self._drop(interrupt)
            return
        if text == wanted:
            if key not in self._seen:
                self._seen.add(key)
                self._leaving[key] = interrupt
        elif key in self._seen:
            self._seen.discard(key)
            if not changed:
                self._moved[key] = now, interrupt
        self._files[key] = wanted

    def _affinity(self, node: int, text: str, entry: OriginalValue | None) -> str:
        """What the interrupt shall have; empty for what it would have without the agent."""
        try:
            original = text if entry is None else limits.original(entry, text)
            affinity = self._by_original.get((original, node))
            if affinity is None:
                cpus = CpuSet.parse(original)
                near = self._nodes.get(node, EMPTY)
                wanted = wanted_affinity(cpus, self._rules, near)
                affinity = "" if wanted == cpus else str(wanted)
                self._by_original[original, node] = affinity
        except (CgroupError, CpuSetError):
            return ""
        return affinity

    def _drop(self, interrupt: _Interrupt) -> None:
        self._files.pop(interrupt.key, None)
        self._seen.discard(interrupt.key)
        self._leaving.pop(interrupt.key, None)

    def _look_at_leaving(self) -> None:
        """Forgets those that no longer use CPUs of owners."""
        for key, interrupt in list(self._leaving.items())[:_EFFECTIVE_AT_ONCE]:
            del self._leaving[key]
            interrupt.waits = bool(interrupt.effective() & self._rules.quiet)
            if interrupt.waits:
                self._leaving[key] = interrupt  # behind the others

    def _follow_balancers(self, now: float) -> None:
        if now < self._ask_at:
            return
        self._ask_at = now + _ASK_SECONDS
        self._untold = ""
        before, self._balancers, self._told = self._balancers, {}, set()
        gone = True
        for group in irqbalance.sockets(self._root):
            key = (group, IRQBALANCE_BANNED)
            entry = self._journal.value(*key)
            try:
                text = self._controllers.read(*key) or ""
                original = text if entry is None else limits.original(entry, text)
                wanted = str(CpuSet.parse(original) | self._rules.quiet)
            except GroupGone:
                continue
            except (CgroupError, CpuSetError) as error:
                gone = False
                self._untold = str(error)
                self._ask_at = now + RETRY_SECONDS
                if entry is not None:
                    self._balancers[key] = before.get(key, entry.value)
                    self._told.add(key)
            else:
                gone = False
                self._balancers[key] = wanted
                if text == wanted:
                    self._told.add(key)
        if gone and irqbalance.runs(self._root):
            self._untold = "it has no socket"

    def _problems(self) -> Iterator[str]:
        if self._untold:
            yield (
                "irqbalance can't be told which CPUs to leave "
                f"(start it with IRQBALANCE_BANNED_CPULIST={self._rules.quiet}): {self._untold}"
            )
        reasons = Counter(
            refusal.reason
            for interrupt in self._refused.values()
            if (refusal := interrupt.refusal) is not None
            and refusal.reason != _MANAGED
            and refusal.on & self._rules.quiet
        )
        for reason, number in reasons.items():
            yield f"{count(number, 'interrupt')} can't leave CPUs of owners: {reason}"

    def _notes(self, now: float) -> Iterator[str]:
        by_reason: dict[str, list[_Interrupt]] = {}
        disturbing = set()
        for key, interrupt in self._refused.items():
            if (refusal := interrupt.refusal) is not None:
                by_reason.setdefault(refusal.reason, []).append(interrupt)
                if refusal.on & self._rules.quiet:
                    disturbing.add(key)
        for reason, refused in by_reason.items():
            refused.sort(key=lambda interrupt: interrupt.key not in disturbing)
            here = sum(interrupt.key in disturbing for interrupt in refused)
            yield (
                f"{count(len(refused), 'interrupt')} can't be moved, {here} of them from CPUs of "
                f"owners: {_names(refused)}: {reason}"
            )
        waiting = [interrupt for interrupt in self._leaving.values() if interrupt.waits]
        if waiting:
            waiting.sort(key=lambda interrupt: (len(interrupt.key[0]), interrupt.key))
            yield (
                f"{count(len(waiting), 'interrupt')} may occur once more on CPUs of owners: "
                f"{_names(waiting)}: the kernel moves an interrupt when it next occurs, unless the "
                "machine has interrupt remapping"
            )
        self._moved = {
            key: value for key, value in self._moved.items() if now - value[0] < RETRY_SECONDS
        }
        if self._moved:
            moved = [interrupt for _, interrupt in self._moved.values()]
            yield (
                f"another program has moved {count(len(moved), 'interrupt')} to CPUs of owners "
                f"within a minute: {_names(moved)}"
            )


def _names(interrupts: Sequence[_Interrupt]) -> str:
    first = ", ".join(interrupt.name for interrupt in interrupts[:MOST_NAMED])
    return f"{first}, ..." if len(interrupts) > MOST_NAMED else first
