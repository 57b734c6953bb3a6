"""What still disturbs owners that ask for quiet CPUs, as findings of the doctor. Changes
nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from agent.cgroup import irqbalance, journal
from agent.cgroup.hierarchy import CgroupError, Controllers, GroupGone, Handles
from agent.cgroup.irqbalance import Irqbalance
from agent.cgroup.journal import OriginalValue
from agent.cgroup.limits import IRQBALANCE_BANNED, PARTITION
from agent.cgroup.order import parent
from agent.host.files import Tree
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union
from agent.model.pod.pods import Pod
from agent.model.settings.agent import RestoreSettings
from agent.model.settings.feature_modes import FeatureMode
from agent.model.snapshot import PodWanted, Snapshot
from agent.node.disturbers import disturbed_now, quiet_of_node
from agent.node.features import Key
from agent.node.node_findings import NodeCode, some
from agent.usage.disturbers import DisturberKind, Remedy
from agent.view.disturbers import DisturbedOwner, sentence
from agent.view.quiet import ShownQuiet, ShownQuietOwner

LOOK_SECONDS: Final = 1.0
"""How long the doctor looks at the CPUs of owners that ask for quiet ones."""
_BOOT: Final = {
    "isolcpus": "sys/devices/system/cpu/isolated",
    "nohz_full": "sys/devices/system/cpu/nohz_full",
}
"""The CPUs of options of the kernel's command line."""


def find(
    settings: RestoreSettings, pods: Iterable[Pod], snapshot: Snapshot | None
) -> dict[NodeCode, str]:
    """Nothing on a node without owners for which a feature acts. Raises CgroupError and RpcError.

    `pods`: are those of the runtime.
    `snapshot`: has the agent's last decisions; None without any."""
    quiet = quiet_of_node(settings.state_dir)
    acting = _acting(quiet) if quiet else {}
    if quiet is None or snapshot is None or not acting:
        return {}
    controllers = Controllers(settings.cgroup_root, Handles(0))
    silent = silent_cpus(quiet, snapshot.pods.values())
    disturbed = disturbed_now(settings, quiet, LOOK_SECONDS)
    # Load balancing alone is what v1 can end: its CPUs stay those of other groups.
    on_v1 = frozenset() if controllers.version("cpuset") == 2 else frozenset({Remedy.PARTITIONS})
    features = {title: acting[title] - on_v1 for title in acting}
    texts = of_owners(disturbed, features, silent)
    values: Mapping[Key, OriginalValue] = {}
    with contextlib.suppress(OSError):  # no agent has written anything, as far as is known
        _, values = journal.peek(Path(settings.state_dir) / "journal")
    without = union(
        cpus for title, cpus in silent.items() if Remedy.INTERRUPTS in acting.get(title, ())
    )
    texts[NodeCode.QUIET_IRQBALANCE] = [*balancers(settings.root, values, without)]
    isolated = {title for title, features in acting.items() if "partitions" in features}
    texts[NodeCode.QUIET_PARTITION] = [
        *invalid_partitions(controllers, (pod for pod in pods if pod.title in isolated))
    ]
    own = union(CpuSet.parse(owner.cpus) for owner in quiet.owners)
    texts[NodeCode.QUIET_BOOT] = [*wasted(Tree(settings.root), own)]
    return {code: some(of_code) for code, of_code in texts.items() if of_code}


def silent_cpus(quiet: ShownQuiet, pods: Iterable[PodWanted]) -> Mapping[str, CpuSet]:
    """By title of the owner, the CPUs that interrupts leave if it asks for that: some pods keep
    them on a core.

    `pods`: are those of the agent's last decisions."""
    kept = {
        pod.title: union(CpuSet.parse(wanted.housekeeping) for wanted in pod.containers.values())
        for pod in pods
    }
    return {
        owner.title: CpuSet.parse(owner.cpus) - kept.get(owner.title, EMPTY)
        for owner in quiet.owners
    }


def balancers(root: str, values: Mapping[Key, OriginalValue], quiet: CpuSet) -> Iterator[str]:
    """Each irqbalance that may move interrupts to these CPUs.

    `values`: are those of the agent's journal."""
    if not quiet:
        return
    groups = irqbalance.sockets(root)
    if not groups and irqbalance.runs(root):
        yield (
            f"irqbalance has no socket: it moves interrupts to CPUs {quiet}, unless it was started "
            f"with IRQBALANCE_BANNED_CPULIST={quiet}"
        )
    running = Irqbalance(root, lambda: values)
    for group in groups:
        try:
            banned = CpuSet.parse(running.read(group, IRQBALANCE_BANNED))
        except GroupGone:
            continue
        except CgroupError as error:
            yield str(error)
        else:
            if not quiet <= banned:
                yield f"irqbalance {group[1:]} may move interrupts to CPUs {quiet - banned}"


def _acting(quiet: ShownQuiet) -> Mapping[str, frozenset[str]]:
    """By title, the features that act for an owner; without owners for which none does."""
    act = frozenset(feature.name for feature in quiet.features if feature.mode is FeatureMode.ACT)

    def of_owner(owner: ShownQuietOwner) -> frozenset[str]:
        return act.intersection(owner.features)

    return {owner.title: of_owner(owner) for owner in quiet.owners if of_owner(owner)}


def of_owners(
    owners: Iterable[DisturbedOwner],
    acting: Mapping[str, frozenset[str]],
    silent: Mapping[str, CpuSet],
) -> dict[NodeCode, list[str]]:
    """What disturbs owners although a feature that would take it away acts.

    `acting`: has by title the features that act for an owner.
    `silent`: has the CPUs that interrupts leave."""
    interrupts: list[str] = []
    tasks: list[str] = []
    for owner in owners:
        features = acting.get(owner.pod, frozenset())
        for one in owner.disturbers:
            there = CpuSet.parse(one.cpus) & silent.get(owner.pod, EMPTY)
            if one.kind is DisturberKind.INTERRUPTS and one.remedy in features and there:
                interrupts.append(f"{owner.pod}: {sentence(one)}")
            elif one.kind is DisturberKind.TASKS and one.remedy in features:
                tasks.append(f"{owner.pod}: {sentence(one)}")
        allowed = sum(
            advice.allowed
            for advice in owner.advice
            if advice.remedy in _OF_TASKS and advice.remedy in features
        )
        if allowed:
            tasks.append(f"{owner.pod}: {allowed} threads of others may run on CPUs {owner.cpus}")
    return {NodeCode.QUIET_INTERRUPTS: interrupts, NodeCode.QUIET_TASKS: tasks}


_OF_TASKS: Final = (Remedy.HOST_SLICES, Remedy.PARTITIONS)


def invalid_partitions(controllers: Controllers, pods: Iterable[Pod]) -> Iterator[str]:
    """The partitions of these pods that the kernel does not honour, with its reason."""
    for pod in pods:
        groups = {
            each.group: f"{pod.title} {each.name}"
            for each in pod.containers
            if each.group is not None and not each.virtual
        }
        # The pod's own group is the partition of most.
        groups = dict.fromkeys(map(parent, groups), pod.title) | groups
        for group, name in groups.items():
            with contextlib.suppress(CgroupError):  # it has just ended
                state = controllers.read(group, PARTITION) or ""
                if "invalid" in state:
                    yield f"{name}: {state}"


def wasted(tree: Tree, own: CpuSet) -> Iterator[str]:
    """The CPUs that the boot line takes from the scheduler or its tick, and that no owner with
    quiet CPUs has.

    `own`: are those that owners have."""
    for option, path in _BOOT.items():
        try:
            cpus = CpuSet.parse(tree.text(path) or "") - own
        except CpuSetError:  # `(null)` without the option
            continue
        if cpus:
            yield f"{option}= covers CPUs {cpus}"
