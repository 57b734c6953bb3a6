from __future__ import annotations

from agent.allocate.numa.hint import Merged, TopologyHint
from agent.allocate.numa.kubelet_merge import merge
from agent.allocate.numa.scope import AdmitFailure, TopologyManagerScope, admit
from agent.model.policies import NumaPolicy


class Machine:
    """Two NUMA nodes of four CPUs; every container asks for three."""

    def __init__(self) -> None:
        self.free = {0: 4, 1: 4}

    def merged(self, container: str | None) -> Merged:
        need = 6 if container is None else 3
        single = [TopologyHint(1 << node, True) for node, free in self.free.items() if free >= need]
        both = [TopologyHint(0b11, not single)] if sum(self.free.values()) >= need else []
        return merge([{"cpu": single + both}], [0, 1], NumaPolicy.RESTRICTED)

    def allocate(self, container: str, mask: int | None) -> bool:
        need = 3
        for node in self.free:
            if mask is None or mask >> node & 1:
                taken = min(need, self.free[node])
                self.free[node] -= taken
                need -= taken
        return need == 0


def test_each_container_after_the_one_before() -> None:
    machine = Machine()
    admission = admit(
        TopologyManagerScope.CONTAINER, ["init", "app"], machine.merged, machine.allocate
    )
    assert admission.admit
    assert [(name, merged.mask) for name, merged in admission.affinities] == [
        ("init", 0b01),
        ("app", 0b10),
    ]


def test_one_affinity_for_the_whole_pod() -> None:
    machine = Machine()
    admission = admit(TopologyManagerScope.POD, ["one", "two"], machine.merged, machine.allocate)
    assert admission.admit
    assert [merged.mask for _, merged in admission.affinities] == [0b11, 0b11]


def test_the_first_container_that_is_not_aligned_ends_it() -> None:
    machine = Machine()
    containers = ["one", "two", "three", "four"]
    admission = admit(TopologyManagerScope.CONTAINER, containers, machine.merged, machine.allocate)
    assert admission.refused == ("three", AdmitFailure.ALIGNMENT)
    assert len(admission.affinities) == 3


def test_a_failed_allocation_ends_it() -> None:
    machine = Machine()
    admission = admit(
        TopologyManagerScope.POD, ["one", "two"], machine.merged, lambda name, mask: name == "one"
    )
    assert admission.refused == ("two", AdmitFailure.ALLOCATION)


def test_a_pod_without_containers_is_admitted() -> None:
    machine = Machine()
    assert admit(TopologyManagerScope.POD, [], machine.merged, machine.allocate).admit
