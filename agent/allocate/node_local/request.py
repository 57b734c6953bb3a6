"""Which containers own CPUs under a node-local policy, by their request to the runtime: for agent
and proxy, so it imports little."""

from __future__ import annotations

from typing import Final

from agent.allocate.shares import claims, kubelet_may_own
from agent.model.pods import Pod
from agent.model.qos import QoS

_SHARES_PER_CPU: Final = 1024
_MOST_SHARES: Final = 262_144
"""Where the kubelet cuts shares off: they no longer tell the request."""


def whole_cpus(shares: int) -> int:
    """The CPUs of a container's request by its cpu shares, 0 unless it is a whole number.

    The kubelet rounds milli * 1024 / 1000 down, so that only whole CPUs are multiples of 1024. A
    container of a pod with pod-level resources that requests nothing itself has the least shares.
    """
    cpus, rest = divmod(shares, _SHARES_PER_CPU)
    return 0 if rest or shares < 0 or shares >= _MOST_SHARES else cpus


def may_own(pod: Pod) -> bool:
    """Whether containers of the pod qualify: a Guaranteed one whose CPUs no scheduler chose and
    whose label does not put it on a pool."""
    return kubelet_may_own(pod) and not claims(pod) and pod.qos is not QoS.SYSTEM
