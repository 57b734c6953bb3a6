"""CPUs that a driver of claims (DRA) gave to containers: nobody else's, and in no pool.

The kubelet says that a container has such a claim, and the driver's variable in the container which
CPUs they are (dra-driver-cpu). Neither is enough: a claim's device may be a NUMA node, and anybody
can write a variable into a pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from agent.allocate.foreign.carriers import CPU_DRIVER
from agent.allocate.foreign.names import meaning
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.holding import Form, Grant, Holding, Source

_CPU_DEVICE: Final = re.compile(r"cpudev(numa|socket|machine)?\d*")
"""What drivers that follow its example call theirs too."""


class ClaimedCpus(msgspec.Struct, frozen=True):
    """`by_uid`: of pods, by container. `problems` name what can't be kept for anybody."""

    by_uid: dict[str, dict[str, CpuSet]] = {}
    holdings: tuple[Holding, ...] = ()
    problems: tuple[str, ...] = ()


def claimed_cpus(grants: Iterable[Grant]) -> ClaimedCpus:
    """`grants`: what the kubelet says of claims, and what containers show."""
    grants = tuple(grants)
    claims = {
        (grant.uid, grant.container): grant.claim
        for grant in grants
        if grant.source is Source.CLAIM and _gives_cpus(grant)
    }
    by_uid: dict[str, dict[str, CpuSet]] = {}
    holdings: list[Holding] = []
    problems: list[str] = []
    for grant in grants:
        if grant.source is not Source.CONTAINER or grant.resource != CPU_DRIVER:
            continue
        title = f"pod {grant.uid}, {grant.container}: CPUs {', '.join(grant.names)} in a variable"
        claim = claims.get((grant.uid, grant.container))
        if claim is None:
            problems.append(f"{title}, and no claim by the kubelet's word")
            continue
        found = meaning(msgspec.structs.replace(grant, claim=claim), {})
        problems += [f"{title}: {name!r} {why}" for name, why in found.left]
        problems += [f"{title}: {name!r} is no list of CPUs" for name in found.unknown]
        for each in found.holdings:
            if each.form is Form.CPUS:
                of_pod = by_uid.setdefault(each.uid, {})
                cpus = of_pod.get(each.container, EMPTY) | CpuSet.parse(each.part)
                of_pod[each.container] = cpus
                holdings.append(each)
    return ClaimedCpus(by_uid, tuple(holdings), tuple(problems))


def _gives_cpus(grant: Grant) -> bool:
    return grant.resource == CPU_DRIVER or any(map(_CPU_DEVICE.fullmatch, grant.names))
