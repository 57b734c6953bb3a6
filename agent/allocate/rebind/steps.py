"""The order of the moves of owners: between two steps no CPU has two owners, and every owner has as
many CPUs as before.

A pod whose new CPUs are free moves at once. Otherwise a pod takes the free part of its new CPUs.
Where pods wait for each other's CPUs, one of them first goes to free CPUs that nobody is about to
take."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.cpu.cpuset import lowest


class Step(msgspec.Struct, frozen=True):
    """The pod with this index has the CPUs of the mask after the step."""

    pod: int
    cpus: int


def ordered(now: Mapping[int, int], wanted: Mapping[int, int], free: int) -> list[Step] | None:
    """The steps from `now` to `wanted`, masks by pod; `free`: the CPUs that pods may have and no
    pod has. None if pods wait for each other and no CPU is free."""
    places = {pod: cpus for pod, cpus in now.items() if wanted[pod] != cpus}
    targets = {pod: wanted[pod] for pod in places}
    steps: list[Step] = []

    def go(pod: int, cpus: int) -> None:
        nonlocal free
        free = (free | places[pod]) & ~cpus
        places[pod] = cpus
        steps.append(Step(pod, cpus))
        if cpus == targets[pod]:
            del places[pod], targets[pod]

    while places:
        ready = [pod for pod in places if not targets[pod] & ~places[pod] & ~free]
        if ready:
            go(ready[0], targets[ready[0]])
            continue
        part = [pod for pod in places if targets[pod] & ~places[pod] & free]
        if part:
            pod = part[0]
            here = targets[pod] & ~places[pod] & free
            go(pod, places[pod] & ~lowest(places[pod] & ~targets[pod], here.bit_count()) | here)
            continue
        pod, leaves = _in_the_way(places, targets)
        count = min(leaves.bit_count(), free.bit_count())
        if not count:
            return None
        go(pod, places[pod] & ~lowest(leaves, count) | lowest(free, count))
    return steps


def _in_the_way(places: Mapping[int, int], targets: Mapping[int, int]) -> tuple[int, int]:
    """The pod that has most of the CPUs that others wait for, and these CPUs."""
    awaited = 0
    for pod, cpus in targets.items():
        awaited |= cpus & ~places[pod]
    found = [(places[pod] & ~targets[pod] & awaited, pod) for pod in places]
    leaves, pod = max(found, key=lambda each: (each[0].bit_count(), -each[1]))
    return pod, leaves
