"""A pod's request for resources, before anything is allocated: amounts, class, and the policies for
its CPUs and NUMA nodes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model.policies import BindPolicy
from agent.model.qos import QoS
from agent.model.resource_spec import NumaSpec, ResourceSpec, numa_spec, resource_spec

PRIORITY_CLASS_LABEL = "koordinator.sh/priority-class"
PROD: Final = "koord-prod"


class FollowedPolicies(enum.Enum):
    """The kubelet follows its policies itself for pods that are not Koordinator's."""

    ALL = enum.auto()
    NUMA = enum.auto()
    """The kubelet does not know the devices that Topolet allocates."""
    NONE = enum.auto()


class ResourceRequest(msgspec.Struct, frozen=True):
    """`requests`: `cpu` in milli-CPU, the rest in units; zero amounts are left out. `owner`: its
    class and priority let the pod own CPUs. `cpu_limit_milli` None or 0: no limit. `kubelet`: which
    of its policies we follow for the pod."""

    uid: str
    title: str
    qos: QoS = QoS.LS
    owner: bool = False
    requests: dict[str, int] = {}
    cpu_limit_milli: int | None = None
    spec: ResourceSpec = ResourceSpec()
    numa: NumaSpec = NumaSpec()
    kubelet: FollowedPolicies = FollowedPolicies.ALL

    @property
    def burst_milli(self) -> int:
        """The limit that must fit its NUMA nodes, for a pod that shares CPUs with ConstrainedBurst;
        else 0."""
        policy = self.spec.required or self.spec.preferred
        shares = self.qos is QoS.LS and not self.owner
        bursts = shares and policy is BindPolicy.CONSTRAINED_BURST
        return max(0, self.cpu_limit_milli or 0) if bursts else 0


def resource_request(
    uid: str,
    title: str,
    qos: QoS,
    annotations: Mapping[str, str],
    requests: Mapping[str, int],
    *,
    priority: int | None = None,
    priority_class: str = "",
    cpu_limit_milli: int | None = None,
) -> ResourceRequest:
    """`priority_class`: the value of its label, which overrides the number. Raises
    AnnotationError."""
    return ResourceRequest(
        uid,
        title,
        qos,
        qos in _OWNERS and _band(priority, priority_class) in (PROD, None),
        {name: amount for name, amount in requests.items() if amount > 0},
        cpu_limit_milli,
        resource_spec(annotations),
        numa_spec(annotations),
    )


_OWNERS: Final = (QoS.LSE, QoS.LSR)
_BANDS: Final = {
    PROD: range(9000, 10_000),
    "koord-mid": range(7000, 8000),
    "koord-batch": range(5000, 6000),
    "koord-free": range(3000, 4000),
}


def _band(priority: int | None, priority_class: str) -> str | None:
    """None: in no band, so the class's own default holds, which for LSE and LSR is prod."""
    if priority_class in _BANDS:
        return priority_class
    if priority is None:
        return None
    return next((name for name, band in _BANDS.items() if priority in band), None)
