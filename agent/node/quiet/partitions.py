"""The load balancer leaves the CPUs of owners: their cgroups are isolated cpuset partitions, which
take their CPUs from everything outside (Documentation/admin-guide/cgroup-v2.rst; the load balancer
of v1: Documentation/admin-guide/cgroup-v1/cpusets.rst).

* A remote partition (the kernel has `cpuset.cpus.exclusive`) needs no partition above it, but the
  groups above it have its exclusive CPUs. Before Linux 6.11 these must be in the `cpuset.cpus` of
  each of them (compute_effective_exclusive_cpumask), which a kubelet leaves empty.
* Older kernels only let a child of a partition be one. In such a chain the group of all pods is a
  partition, too, which takes the CPUs of all pods from the host. So the host keeps those on which
  no pod may run, and the operator must allow that.

Passes write cpusets that do not name the CPUs of an owner in any other pod, so partitions stay
valid. One whose CPUs change is given back before a pass writes (`leaving`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from agent.allocate.pools import Decision
from agent.allocate.quiet.partitions import IsolatedGroups, OwnerGroups, isolation
from agent.cgroup.hierarchy import CPUS, CgroupError, Controllers
from agent.cgroup.limits import EXCLUSIVE, ISOLATED, LOAD_BALANCE, PARTITION, PARTITION_ROOT
from agent.cgroup.order import ancestors, parent
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.pod.qos import is_qos_root, pool_cpus
from agent.node.features import MOST_NAMED, Key, WantedFiles
from agent.node.quiet.moment import QuietMoment, QuietOwner

PARTITIONS: Final = "partitions"


class CpusetPartitions:
    """`chain`: is whether the group of all pods may become a partition."""

    name = PARTITIONS

    def __init__(self, controllers: Controllers, *, chain: bool) -> None:
        self._controllers = controllers
        self._chain = chain

    def wanted(self, moment: QuietMoment) -> WantedFiles:
        if moment.decision is None or not any(moment.asking(self.name)):
            return WantedFiles()
        version = self._controllers.version("cpuset")
        if version == 1:
            return self._unbalanced(moment)
        files, problems = self._files(moment)
        for group, cpus in _isolated(files).items():
            if state := self._broken(group, cpus):
                problems.append(state)
                # It is a member for a second: kernels (as 6.1) let it stay invalid otherwise.
                del files[group, PARTITION]
        return WantedFiles(files, _sentences(problems))

    def chain(self, moment: QuietMoment) -> CpuSet:
        """The CPUs that a chain takes from the host in this moment; empty if none is made."""
        files, _ = self._files(moment)
        roots = [group for (group, _), text in files.items() if text == PARTITION_ROOT]
        return union(_cpus(files[group, CPUS]) for group in roots)

    def leaving(self, moment: QuietMoment, held: Collection[Key]) -> set[Key]:
        """The files of those partitions in `held` whose CPUs are others in this moment, or none."""
        present = {group for group, file in held if file == PARTITION}
        if not present:
            return set()
        files, _ = self._files(moment)
        ended = {group for group in present if self._changes(group, files)}
        return {key for key in held if key[0] in ended and key[1] in _OF_PARTITION}

    def _changes(self, group: str, files: Mapping[Key, str]) -> bool:
        if (group, PARTITION) not in files:
            return True
        for file in (EXCLUSIVE, CPUS):
            text = files.get((group, file))
            try:
                if text is not None and _cpus(self._controllers.read(group, file)) != _cpus(text):
                    return True
            except CgroupError:
                return False  # it has ended
        return False

    def _files(self, moment: QuietMoment) -> tuple[dict[Key, str], list[str]]:
        """What partitions have in this moment, and sentences about what can't be isolated."""
        decision = moment.decision
        if decision is None:
            return {}, []
        isolated = isolation(
            [of for owner in moment.asking(self.name) if (of := _groups(owner, decision))]
        )
        problems = list(isolated.refusals)
        if not isolated.groups:
            return {}, problems
        first = next(iter(isolated.groups))
        try:
            remote = self._controllers.read(first, EXCLUSIVE) is not None
            partitions = self._controllers.read(first, PARTITION) is not None
        except CgroupError:
            return {}, problems  # it has just ended
        if not partitions:
            return {}, [*problems, f"this kernel has no {PARTITION}"]
        if remote:
            files = remote_files(isolated.groups)
        elif why := self._no_chain(moment):
            return {}, [*problems, why]
        else:
            files, refused = chain_files(isolated, _of_pods(moment))
            problems += refused
        return files, [*problems, *self._beside(files)]

    def _no_chain(self, moment: QuietMoment) -> str:
        """Why no chain is made; "" for no reason."""
        if not self._chain:
            return (
                "this kernel has no remote partitions (it is older than 6.7): the pods' group "
                "would be a partition, which takes the CPUs of all pods from the host, and "
                "quiet-chain is not set"
            )
        assert moment.topology is not None
        assert moment.decision is not None
        if any(owner.kubelet for owner in moment.decision.owners):
            return "a kubelet with the static policy writes cpusets too, so no chain is made"
        if not moment.topology.online - _of_pods(moment):
            return "pods may run on all CPUs: a chain would leave none to the host (reserve some)"
        return ""

    def _beside(self, files: Mapping[Key, str]) -> Iterator[str]:
        """Sentences about groups of the host that have CPUs of a partition's, for which the kernel
        refuses it."""
        for (group, file), text in files.items():
            above = parent(group)
            if file not in (EXCLUSIVE, CPUS) or is_qos_root(above) or not _is_shared(group, files):
                continue
            try:
                for other in self._controllers.children(above, CPUS):
                    if other == group or other.startswith(f"{group}/"):
                        continue
                    own, listed = _cpus(text), _cpus(self._controllers.read(other, CPUS))
                    # A group may list exclusive CPUs if it lists others too (6.12).
                    has_others = file == EXCLUSIVE and listed - own
                    if (overlap := listed & own) and not has_others:
                        yield f"{other} has the CPUs {overlap} of {group} in its {CPUS}"
            except CgroupError:
                continue

    def _broken(self, group: str, cpus: CpuSet | None) -> str:
        """A sentence about a partition that the kernel does not honour; "" if it does, or if there
        is none yet. Kernels (as 6.12) call one valid that has lost its CPUs with the exclusive
        CPUs of a group above.

        `cpus`: are what the partition has; None for one that shares them with others in it."""
        try:
            state = self._controllers.read(group, PARTITION) or ""
            effective = _cpus(self._controllers.read(group, _EFFECTIVE))
        except CgroupError:
            return ""
        if "invalid" in state:
            return f"{group} is {state}{self._lacking(group)}"
        if state == ISOLATED and cpus is not None and effective != cpus:
            return f"{group} is {state}, but has the CPUs '{effective}', not '{cpus}'"
        return ""

    def _lacking(self, group: str) -> str:
        """What a kernel before 6.11 finds missing, after a colon; "" for nothing."""
        for each in (*ancestors(group), group):
            try:
                in_force = self._controllers.read(each, _EXCLUSIVE_EFFECTIVE)
                if in_force == "" and not self._controllers.read(each, CPUS):
                    return f": {each} has no cpuset.cpus of its own, which Linux before 6.11 needs"
            except CgroupError:
                continue
        return ""

    def _unbalanced(self, moment: QuietMoment) -> WantedFiles:
        """v1 has no partitions. A group that is not balanced has an effect if no group above it is
        balanced."""
        assert moment.decision is not None
        files: dict[Key, str] = {}
        problems = []
        for owner in moment.asking(self.name):
            of_owner = _groups(owner, moment.decision)
            if of_owner is None:
                continue
            balanced = self._balanced(("/", *ancestors(of_owner.pod)))
            if balanced:
                problems.append(
                    f"{owner.title}: {LOAD_BALANCE} of {balanced} is 1, so the load balancer of "
                    "cgroup v1 moves tasks to all CPUs"
                )
                continue
            for group in (of_owner.pod, *of_owner.containers):
                files[group, LOAD_BALANCE] = "0"
        return WantedFiles(files, _sentences(problems))

    def _balanced(self, groups: Collection[str]) -> str:
        """The first of these groups that is balanced; "" for none."""
        for group in groups:
            try:
                if self._controllers.read(group, LOAD_BALANCE) != "0":
                    return group
            except CgroupError:
                continue
        return ""


_EFFECTIVE: Final = "cpuset.cpus.effective"
_EXCLUSIVE_EFFECTIVE: Final = "cpuset.cpus.exclusive.effective"
_OF_PARTITION: Final = (CPUS, EXCLUSIVE, PARTITION)


def remote_files(groups: Mapping[str, CpuSet]) -> dict[Key, str]:
    """What remote partitions with these CPUs need."""
    exclusive: dict[str, CpuSet] = {}
    for group, cpus in groups.items():
        for each in (*ancestors(group), group):
            exclusive[each] = exclusive.get(each, EMPTY) | cpus
    files: dict[Key, str] = {(group, EXCLUSIVE): str(cpus) for group, cpus in exclusive.items()}
    return files | {(group, PARTITION): ISOLATED for group in groups}


def chain_files(isolated: IsolatedGroups, of_pods: CpuSet) -> tuple[dict[Key, str], list[str]]:
    """What a chain down to these groups needs, and sentences about groups in none.

    `of_pods`: are the CPUs on which pods may run."""
    files: dict[Key, str] = {}
    problems = []
    for group, cpus in isolated.groups.items():
        above = parent(group)
        # A partition between them would take CPUs from what else runs in it.
        if parent(above) != "/" or not is_qos_root(above):
            problems.append(
                f"{group}: in a chain {above} would be a partition, and take CPUs from what else "
                "runs beside or in it"
            )
            continue
        files |= {(above, CPUS): str(of_pods), (above, PARTITION): PARTITION_ROOT}
        files |= {(group, CPUS): str(cpus), (group, PARTITION): ISOLATED}
    return files, problems


def _of_pods(moment: QuietMoment) -> CpuSet:
    """The CPUs on which a pod may run."""
    if moment.decision is None:
        return EMPTY
    decision = moment.decision
    cpusets = {
        wanted.cpuset
        for of_pod in decision.pods.values()
        for wanted in (of_pod.each, *of_pod.containers.values())
        if wanted.cpuset
    }
    pools = union(pool_cpus(of_name) for of_name in decision.pools.values())
    owned = union(owner.cpus for owner in decision.owners)
    return pools | owned | decision.be_pool | union(map(CpuSet.parse, cpusets))


def _groups(owner: QuietOwner, decision: Decision) -> OwnerGroups | None:
    """The groups of an owner; None while none of its containers runs."""
    pod, of_pod = owner.pod, decision.pods[owner.uid]
    names = {*(pod.named or ()), *(each.name for each in pod.containers)}
    wanted = {name: of_pod.of(name) for name in names}
    own = {name: each for name, each in wanted.items() if each.exclusive and each.shared is None}
    groups = {each.name: each.group for each in pod.containers if each.group is not None}
    parents = {parent(group) for group in groups.values()}
    if len(parents) != 1:
        return None
    others = [
        None if each.cpuset is None else _cpus(each.cpuset)
        for name, each in wanted.items()
        if name not in own
    ]
    if pod.sandboxes:
        pause = of_pod.each.cpuset
        others.append(decision.pauses or (None if pause is None else _cpus(pause)))
    refused = ""
    if not owner.alone:
        refused = f"BE pods run on its CPUs {owner.cpus}, because it is LSR"
    elif any(each.sharers for each in decision.owners if each.is_of(owner.uid)):
        refused = "other pods use its claims too"
    elif not own:
        refused = "each of its containers runs on a share of the pool too"
    return OwnerGroups(
        owner.title,
        parents.pop(),
        {groups[name]: cpus for name, cpus in owner.containers.items() if name in groups},
        union(_cpus(each.cpuset) for each in own.values()),
        tuple(others),
        refused,
    )


def _isolated(files: Mapping[Key, str]) -> dict[str, CpuSet | None]:
    """The partitions with their CPUs; None for those that have others below."""
    return {
        group: _cpus(files.get((group, EXCLUSIVE)) or files.get((group, CPUS)))
        if text == ISOLATED
        else None
        for (group, file), text in files.items()
        if file == PARTITION
    }


def _is_shared(group: str, files: Mapping[Key, str]) -> bool:
    """Whether other wanted groups are in it."""
    return any(other.startswith(f"{group}/") for other, _ in files)


def _cpus(text: str | None) -> CpuSet:
    try:
        return CpuSet.parse(text or "")
    except CpuSetError:
        return EMPTY


def _sentences(problems: Collection[str]) -> str:
    first = list(problems)[:MOST_NAMED]
    more = len(problems) - len(first)
    return "; ".join([*first, f"and {more} more"] if more else first)
