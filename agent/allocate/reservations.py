"""Which CPUs a node keeps from the pods that share: by name, or chosen for an amount.

An amount takes as many CPUs as it begins, where the kubelet would take them (koordinator.md §2.3).
"""

from __future__ import annotations

from agent.allocate.kubelet.packed import NotEnoughCpusError, take_packed
from agent.allocate.layout import Layout
from agent.model.annotations import AnnotationError
from agent.model.cpuset import CpuSet
from agent.model.node_annotations import RESERVATION, NodeReservation


def cpus_for(layout: Layout, cpu_milli: int) -> CpuSet:
    """Of all CPUs of the machine. Raises NotEnoughCpusError."""
    return CpuSet.from_int(take_packed(layout, layout.cpus, -(-cpu_milli // 1000)))


def reserved_cpus(layout: Layout, reservation: NodeReservation) -> CpuSet:
    """The CPUs that are named, else those for the amount. Raises AnnotationError."""
    if named := reservation.cpus():
        return named
    try:
        return cpus_for(layout, reservation.cpu_milli())
    except NotEnoughCpusError as error:
        raise AnnotationError(RESERVATION, f"resources.cpu: {error}") from None
