"""What the runtime lists, parted into what is looked after and what is left alone."""

from __future__ import annotations

import logging

import msgspec

from agent.cgroup import writer
from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.journal import Journal
from agent.cgroup.outcome import State
from agent.model.exclusion import Patterns, excludes
from agent.model.pods import Container, Pod
from agent.node.observed import Observed

log = logging.getLogger(__name__)


def part(observed: Observed, patterns: Patterns) -> tuple[Observed, tuple[Container, ...]]:
    """A pod whose containers are all left alone stays while it has a sandbox of its own."""
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
        kept.append(msgspec.structs.replace(pod, containers=others))
    return msgspec.structs.replace(observed, pods=tuple(kept)), tuple(left)


def give_back(
    hierarchy: Hierarchy, journal: Journal, alone: tuple[Container, ...]
) -> tuple[str, ...]:
    """What is left alone from now on gets the cpusets that it had before us; the failures."""
    groups = {each.group for each in alone if each.group and each.group in journal}
    if not groups:
        return ()
    outcome = writer.restore(hierarchy, journal, only=groups)
    for change in outcome.having(State.WRITTEN):
        log.info("%s is left alone: back to %s", change.group, change.new)
    return tuple(f"{each.group}: {each.note}" for each in outcome.having(State.FAILED))
