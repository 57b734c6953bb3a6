"""CPUs that a driver of resource claims (DRA) gave to containers: exclusive, and in no pool. The
driver's variable in a container names the CPUs and the claim (dra-driver-cpu); the kubelet reports
that the container has a claim on CPUs, and which one by the CDI name of the driver. Neither is
enough: a claim's device may be a NUMA node, and every pod can set a variable."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from agent.allocate.foreign.grants import CPU_DRIVER
from agent.allocate.foreign.names import meaning
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.holding import DeviceGrant, DeviceHolding, Form, HoldingSource

_CPU_DEVICE: Final = re.compile(r"cpudev(numa|socket|machine)?\d*")
"""What drivers that follow its example call theirs too."""


class ClaimedCpus(msgspec.Struct, frozen=True):
    """`by_uid`: of pods, by container. `problems` name what can't be kept for anybody."""

    by_uid: dict[str, dict[str, CpuSet]] = {}
    holdings: tuple[DeviceHolding, ...] = ()
    problems: tuple[str, ...] = ()


def claimed_cpus(grants: Iterable[DeviceGrant]) -> ClaimedCpus:
    """`grants`: the claims that the kubelet reports, and those that containers show."""
    grants = tuple(grants)
    claims: dict[tuple[str, str], list[DeviceGrant]] = {}
    for grant in grants:
        if grant.source is HoldingSource.CLAIM and _gives_cpus(grant):
            claims.setdefault((grant.uid, grant.container), []).append(grant)
    by_uid: dict[str, dict[str, CpuSet]] = {}
    holdings: list[DeviceHolding] = []
    problems: list[str] = []
    for grant in grants:
        if grant.source is not HoldingSource.CONTAINER or grant.resource != CPU_DRIVER:
            continue
        title = f"pod {grant.uid}, {grant.container}: CPUs {', '.join(grant.names)} in a variable"
        of_container = claims.get((grant.uid, grant.container), ())
        claim = next((each for each in of_container if _is_of(each, grant.claim)), None)
        if claim is None:
            problems.append(f"{title}, and no such claim by the kubelet's word")
            continue
        found = meaning(msgspec.structs.replace(grant, claim=claim.claim), {})
        problems += [f"{title}: {name!r} {why}" for name, why in found.left]
        problems += [f"{title}: {name!r} is no list of CPUs" for name in found.unknown]
        for each in found.holdings:
            if each.form is Form.CPUS:
                of_pod = by_uid.setdefault(each.uid, {})
                cpus = of_pod.get(each.container, EMPTY) | CpuSet.parse(each.part)
                of_pod[each.container] = cpus
                holdings.append(each)
    return ClaimedCpus(by_uid, tuple(holdings), tuple(problems))


def _gives_cpus(grant: DeviceGrant) -> bool:
    return grant.resource == CPU_DRIVER or any(map(_CPU_DEVICE.fullmatch, grant.names))


def _is_of(grant: DeviceGrant, uid: str) -> bool:
    """`claim-UID`, or one of several of it."""
    names = (each.rpartition("=")[2] for each in grant.cdi)
    return any(name == f"claim-{uid}" or name.startswith(f"claim-{uid}-") for name in names)
