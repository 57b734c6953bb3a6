"""The CPU weights of containers with CPUs of ResourceClaims, and of their pods.

The kubelet makes a weight of a container's CPU request, which need not say what its claims have: it
would be too low on the pool, against host daemons, and against other users of the claim. A weight
is never lowered: a kubelet that counts claims as requests (KEP-5517) writes one as high."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import MAX_SHARES
from agent.model.pod.pods import Container
from agent.model.snapshot import PodWanted

_SHARES_PER_CPU: Final = 1024


def least_shares(cpus: CpuSet) -> int:
    """The shares that the kubelet gives to a request of so many CPUs."""
    return min(len(cpus) * _SHARES_PER_CPU, MAX_SHARES)


def pod_shares(containers: Iterable[Container], wanted: PodWanted) -> int:
    """The fewest shares of the pod's cgroup: the sum of its containers' shares. 0 if none of them
    has CPUs of a claim, because the kubelet's value is right then."""
    total, with_claim = 0, False
    for container in containers:
        of_container = wanted.of(container.name)
        with_claim = with_claim or of_container.least_shares > 0
        requested = of_container.resources.shares or container.shares
        total += max(requested, of_container.least_shares)
    return min(total, MAX_SHARES) if with_claim else 0
