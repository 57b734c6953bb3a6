"""Makes true what was decided: cgroups first, then the runtime, which must not put back what it
remembers of a container."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from agent.allocate.pools import Decision
from agent.cgroup import limits as fields
from agent.cgroup import values, writer
from agent.cgroup.controllers import Controllers
from agent.cgroup.hierarchy import MEMS, CgroupError, Hierarchy
from agent.cgroup.journal import Journal, JournalError, Original
from agent.cgroup.order import parent
from agent.cgroup.outcome import Outcome, State
from agent.model.cpuset import EMPTY, CpuSet, CpuSetError
from agent.model.doorbell import Asked, Created
from agent.model.limits import Limits
from agent.model.pods import Container, ContainerState
from agent.model.topology import Topology
from agent.model.wanted import NO_LIMITS, Wanted
from agent.node import excluded, wanted
from agent.node.observed import Observed
from agent.node.originals import replaced, resized
from agent.node.telling import Teller, remembers
from agent.node.witness import Witness
from agent.rpc.grpc import RpcError
from agent.runtime.cri import Cri

log = logging.getLogger(__name__)


class Enforcement:
    """Remembers what the proxy replaced at creation until a group is there to journal it for."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        controllers: Controllers,
        journal: Journal,
        cri: Cri,
        teller: Teller | None,
        witness: Witness,
        *,
        migrate_memory: bool = False,
    ) -> None:
        self._hierarchy = hierarchy
        self._controllers = controllers
        self._journal = journal
        self._cri = cri
        self._teller = teller
        self._witness = witness
        self._migrate_memory = migrate_memory
        self._replaced: dict[str, Created] = {}
        self._resized: dict[str, Asked] = {}
        self._returned: dict[str, dict[str, str]] = {}

    def created(self, ring: Created) -> None:
        """The proxy made a container."""
        self._replaced[ring.container_id] = ring

    def resized(self, container_id: str, asked: Asked) -> None:
        """The proxy let a change of a container pass that asked for this."""
        self._resized[container_id] = asked

    def pause(self) -> bool:
        """Nothing decided before is told to the runtime from now on; whether a call is under way,
        which may still put it in force."""
        return self._teller is not None and self._teller.pause()

    def holds(self, observed: Observed, topology: Topology) -> dict[str, CpuSet]:
        """By container id, what it runs on, or will start on; and what the runtime is just being
        told, which it may put in force at any moment."""
        holds = {}
        telling = self._teller.under_way() if self._teller else {}
        for container in _containers(observed):
            if container.state is ContainerState.CREATED:
                holds[container.id] = _starting(observed, container, topology)
            elif container.group is not None:
                try:
                    holds[container.id] = self._hierarchy.effective_cpus(container.group)
                except CgroupError as error:
                    log.debug("%s", error)
            if container.id in telling and container.id in holds:
                holds[container.id] |= telling[container.id]
        return holds

    def give_back(self, alone: tuple[Container, ...]) -> tuple[str, ...]:
        """What is left alone from now on gets its values back; the failures."""
        return excluded.give_back(self._hierarchy, self._journal, alone, self._controllers)

    def free_cpus(self, observed: Observed, decision: Decision) -> Outcome:
        """Writes the cpusets of running containers: what owners wait for."""
        return writer.apply(self._hierarchy, self._journal, wanted.cpusets(observed.pods, decision))

    def finish(self, observed: Observed, decision: Decision, freed: Outcome) -> list[str]:
        """Writes what nobody waits for: sandboxes and limits; what could not be written, and of
        `freed` too."""
        sandboxes = wanted.sandbox_cpusets(observed.pods, decision)
        outcome = writer.apply(self._hierarchy, self._journal, sandboxes)
        limits = wanted.limits(observed.pods, decision)
        asked = {group: self._as_migrated(each) for group, each in limits.items()}
        others = values.apply(self._controllers, self._journal, asked)
        titles = {
            group: title
            for pod in observed.pods
            for each in (*pod.sandboxes, *pod.containers)
            if each.group is not None
            for group, title in (
                (parent(each.group), pod.title),
                (each.group, f"{pod.title} {each.name or 'sandbox'}"),
            )
        }
        failures = self._give_back_limits(observed, limits)
        return failures + self._witness.written((freed, outcome), others, titles)

    def _as_migrated(self, limits: Limits) -> Limits:
        if limits.mems is None or self._migrate_memory:
            return msgspec.structs.replace(limits, migrate=None if limits.mems is None else True)
        return msgspec.structs.replace(limits, mems=None) if self.memory_stays else limits

    @property
    def memory_stays(self) -> bool:
        """Whether the memory nodes of who runs must not change: cgroup v2 moves the pages, which it
        must be asked for; v1 leaves them where they are."""
        return not self._migrate_memory and self._controllers.version("cpuset") != 1

    def _give_back_limits(self, observed: Observed, wanted: Mapping[str, Limits]) -> list[str]:
        """What is held to a limit of ours no longer gets its own back."""
        present = {
            group
            for pod in observed.pods
            for each in (*pod.containers, *pod.sandboxes)
            if each.group is not None
            for group in (each.group, parent(each.group))
        }
        over = {
            (group, file)
            for group, file in self._journal.values
            if group in present
            and (file != MEMS or not self.memory_stays)
            and file not in fields.files(self._controllers, wanted.get(group, NO_LIMITS))
        }
        if not over:
            return []
        outcome = values.restore(self._controllers, self._journal, over)
        for change in outcome.having(State.WRITTEN):
            log.info("%s: %s back to %s", change.group, change.file, change.new)
            self._returned.setdefault(change.group, {})[change.file] = change.new or ""
        return [f"{each.group} {each.file}: {each.note}" for each in outcome.having(State.FAILED)]

    def tell(self, observed: Observed, decision: Decision) -> None:
        """Running containers whose runtime remembers something else are told to it, later."""
        if self._teller is None:
            return
        groups = {each.group for each in _containers(observed)}
        for ended in self._returned.keys() - groups:
            del self._returned[ended]
        self._teller.want(
            {
                each.id: wanted.without_memory() if self.memory_stays else wanted
                for pod in observed.pods
                for of_pod in (decision.pods[pod.uid],)
                for each in pod.containers
                if each.state is ContainerState.RUNNING and not each.virtual
                for wanted in (self._with_returned(each.group, of_pod.of(each.name)),)
            },
            observed.starts_with,
        )

    def _with_returned(self, group: str | None, wanted: Wanted) -> Wanted:
        """With the limits that it got back: the runtime remembers ours, and would write them again
        with whatever else it is told."""
        texts = self._returned.get(group or "")
        if not texts or wanted.hands_off:
            return wanted
        if wanted.exclusive or group is None:
            del self._returned[group or ""]
            return wanted
        try:
            back = fields.parsed(self._controllers, group, texts)
        except CgroupError:
            return wanted
        changed = {
            name: value
            for name in back.__struct_fields__
            if (value := getattr(back, name)) is not None and getattr(wanted.limits, name) is None
        }
        limits = msgspec.structs.replace(wanted.limits, **changed)
        return msgspec.structs.replace(wanted, limits=limits)

    def prepare_created(
        self, observed: Observed, decision: Decision, holds: dict[str, CpuSet]
    ) -> None:
        """A container that is not started yet has no cgroup: the runtime changes what it starts
        with, and `holds` follows."""
        for pod in observed.pods:
            for container in pod.containers:
                if container.state is not ContainerState.CREATED or container.virtual:
                    continue
                of_container = decision.pods[pod.uid].of(container.name)
                if remembers(observed.starts_with[container.id], of_container):
                    continue
                try:
                    self._cri.update(container.id, of_container)
                    remembered = self._cri.container_placement(container.id)
                except RpcError as error:
                    log.warning("%s %s: not prepared: %s", pod.title, container.name, error)
                    continue
                # A plugin in the runtime obeys the last snapshot until it has the next.
                if of_container.cpuset is not None and of_container.cpuset == remembered.cpuset:
                    holds[container.id] = CpuSet.parse(of_container.cpuset)
                    where = of_container.cpuset
                    log.info("%s %s: will start on %s", pod.title, container.name, where)

    def remember_replaced(self, observed: Observed) -> list[str]:
        """What the proxy replaced at creation is what a restore gives back. Errors are returned:
        cpusets and snapshot matter more."""
        groups = {each.id: each.group for each in _containers(observed)}
        for unlisted in self._replaced.keys() - groups.keys():
            del self._replaced[unlisted]
        placed = {each: group for each, group in groups.items() if group and each in self._replaced}
        originals = [
            Original(group, str(cpus))
            for each, group in placed.items()
            if (cpus := self._asked_for(self._replaced[each].asked.cpuset, group))
        ]
        others = [
            one
            for each, group in placed.items()
            for one in replaced(self._controllers, group, self._replaced[each])
        ]
        others += [
            one
            for each, asked in self._resized.items()
            if (group := groups.get(each))
            for one in resized(self._controllers, group, asked)
        ]
        # Of a container that was made and changed since the last look, the change counts.
        others = list({(one.group, one.file): one for one in others}.values())
        try:
            # What the proxy says wins over what a write found before the proxy could say it.
            if originals:
                gone = [one for one in self._journal.originals if not self._hierarchy.exists(one)]
                self._journal.update(originals, gone + [each.group for each in originals])
            if others:
                ended = [one for one in self._journal.values if not self._controllers.has(*one)]
                self._journal.update_values(
                    others, ended + [(one.group, one.file) for one in others]
                )
        except JournalError as error:
            return [str(error)]
        for each in placed:
            del self._replaced[each]
        self._resized = {}
        return []

    def _asked_for(self, requested: str, group: str) -> CpuSet:
        try:
            return CpuSet.parse(requested) or self._hierarchy.effective_cpus(parent(group))
        except (CpuSetError, CgroupError):
            return EMPTY


def _containers(observed: Observed) -> Iterable[Container]:
    """Those of this kernel."""
    return (each for pod in observed.pods for each in pod.containers if not each.virtual)


def _starting(observed: Observed, container: Container, topology: Topology) -> CpuSet:
    try:
        return CpuSet.parse(observed.starts_with[container.id].cpuset) or topology.online
    except (KeyError, CpuSetError):
        return topology.online
