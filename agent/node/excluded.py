"""Pods and containers that the agent does not manage, by the patterns of `exclude`."""

from __future__ import annotations

import logging

import msgspec

from agent.cgroup import values, writer
from agent.cgroup.hierarchy import Controllers, Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.order import parent
from agent.cgroup.outcome import WriteState
from agent.model.pods import Container, Pod
from agent.model.snapshot import Patterns, excludes
from agent.node.runtime_view import RuntimeState

log = logging.getLogger(__name__)


def part(observed: RuntimeState, patterns: Patterns) -> tuple[RuntimeState, tuple[Container, ...]]:
    """The managed part, and the excluded containers. A pod whose containers are all excluded stays
    while it has a sandbox."""
    if not patterns:
        return observed, ()
    kept: list[Pod] = []
    left: list[Container] = []
    for pod in observed.pods:
        if excludes(patterns, pod.namespace, pod.name):
            left += (*pod.containers, *pod.sandboxes)
            continue
        alone = {
            each.id
            for each in pod.containers
            if excludes(patterns, pod.namespace, pod.name, each.name)
        }
        left += (each for each in pod.containers if each.id in alone)
        others = tuple(each for each in pod.containers if each.id not in alone)
        ended = tuple(
            each for each in pod.ended if not excludes(patterns, pod.namespace, pod.name, each.name)
        )
        kept.append(msgspec.structs.replace(pod, containers=others, ended=ended))
    return msgspec.structs.replace(observed, pods=tuple(kept)), tuple(left)


def give_back(
    hierarchy: Hierarchy,
    journal: Journal,
    alone: tuple[Container, ...],
    controllers: Controllers | None = None,
) -> tuple[str, ...]:
    """Restores the original values of excluded containers. Returns the failures.

    `controllers`: where values other than cpusets are, None while the agent writes none.
    """
    failures: list[str] = []
    groups = {each.group for each in alone if each.group is not None}
    if cpusets := {group for group in groups if group in journal}:
        outcome = writer.restore(hierarchy, journal, only=cpusets)
        for change in outcome.having(WriteState.WRITTEN):
            log.info("%s is excluded: cpuset restored to %s", change.group, change.new)
        failures += (f"{each.group}: {each.note}" for each in outcome.having(WriteState.FAILED))
    # The sandbox of an excluded pod has no name; the pod's group is the parent of its group.
    groups |= {parent(each.group) for each in alone if each.group is not None and not each.name}
    limits = {(group, file) for group, file in journal.values if group in groups}
    if controllers is not None and limits:
        others = values.restore(controllers, journal, only=limits)
        for value in others.having(WriteState.WRITTEN):
            log.info("%s is excluded: %s restored to %s", value.group, value.file, value.new)
        failures += (
            f"{each.group} {each.file}: {each.note}" for each in others.having(WriteState.FAILED)
        )
    return tuple(failures)
