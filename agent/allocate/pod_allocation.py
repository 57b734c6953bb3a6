"""What is allocated to a pod on its node, read from its annotations and written to them
(Koordinator: PodAllocation in pkg/scheduler/plugins/nodenumaresource/node_allocation.go)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.model.annotations import (
    RESOURCE_STATUS,
    AnnotationError,
    resource_status,
    status_text,
)
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.policies import ExclusivePolicy
from agent.model.resource_spec import resource_spec


class PodAllocation(msgspec.Struct, frozen=True):
    """One pod's part. `amounts`: by NUMA node and resource, `cpu` in milli-CPU, the rest in units;
    `cpu_milli`: what the whole pod requests, wherever it runs. `exclusive` counts with `cpus` only.
    """

    uid: str
    title: str
    cpus: CpuSet = EMPTY
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    amounts: dict[int, dict[str, int]] = {}
    cpu_milli: int = 0

    def annotations(self) -> dict[str, str]:
        """The annotation that `pod_allocation` reads; none for a pod without CPUs and amounts."""
        if not self.cpus and not self.amounts:
            return {}
        return {RESOURCE_STATUS: status_text(self.cpus, self.amounts)}


def pod_allocation(
    uid: str, title: str, annotations: Mapping[str, str], cpu_milli: int = 0
) -> PodAllocation:
    """The claim that a pod's annotations make. Raises AnnotationError for a resource-status that
    can't be read. Whatever else a pod with CPUs of its own writes that can't be, it has its CPUs
    all the same: then without amounts, or without an exclusive policy."""
    status = resource_status(annotations)
    cpus = status.cpus()
    try:
        amounts = status.amounts()
    except AnnotationError:
        if not cpus:
            raise
        amounts = {}
    return PodAllocation(uid, title, cpus, _exclusive(annotations, cpus), amounts, cpu_milli)


def _exclusive(annotations: Mapping[str, str], cpus: CpuSet) -> ExclusivePolicy:
    if not cpus:
        return ExclusivePolicy.NONE
    try:
        return resource_spec(annotations).exclusive
    except AnnotationError:
        return ExclusivePolicy.NONE
