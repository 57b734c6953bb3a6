from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.kubelet.static_policy import AllocationRefused
from agent.model.cpu.layout import of
from agent.model.cpu.topology import Cpu
from agent.model.pod_request import ContainerCpu, PodCpu
from conformance.static_cpu_manager import (
    EMPTY,
    Exclusive,
    StaticPolicy,
    StaticState,
    allocate,
    ends_before_others,
    remove,
    start,
)
from tests.allocate.kubelet.nodes import Node, machine, pod, policy, text
from tests.allocate.machines import MACHINES, masks

STRICT = "strict-cpu-reservation"
FULL = "full-pcpus-only"

TWO = machine(2, 1, 4, 2)
"""Cores 0-3 in node 0, 4-7 in node 1; core n has CPUs n and n + 8."""


def test_cores_of_different_sizes_are_not_split() -> None:
    """Core 0 has one thread, the others two: with it, four CPUs would need half a core."""
    layout = of(Cpu(n, (n + 1) // 2 * 2 - (n > 0), None, None, 0, 0) for n in range(7))
    node = Node(policy(layout, FULL, reserved=""))
    assert node.cpus(pod("a", "4"), "c0") == "1-4"


@given(st.data())
def test_whole_cores_of_any_machine(data: st.DataObject) -> None:
    cpus = data.draw(MACHINES)
    layout = of(cpus)
    names = data.draw(st.sampled_from([(), ("distribute-cpus-across-numa",)]))
    reserved = data.draw(masks(cpus)) & data.draw(masks(cpus))
    node = Node(policy(layout, FULL, *names, reserved=text(reserved)))
    for uid in "abc":
        placed = pod(uid, str(data.draw(st.integers(1, 8))))
        placement = node.place(placed, "c0", *data.draw(st.lists(st.integers(0, 3), max_size=2)))
        assert isinstance(placement, Exclusive | AllocationRefused)
        if isinstance(placement, Exclusive):
            assert layout.expand(layout.whole(placement.cpus)) == placement.cpus
            assert placement.cpus.bit_count() * 1000 == placed.containers[0].cpu_milli


def test_an_unknown_container_is_named() -> None:
    with pytest.raises(KeyError, match="pod a has no container c9"):
        Node(policy(TWO)).place(pod("a", "2"), "c9")


PODS = (
    pod("a", "2", "1", init=("4", "2s", "2")),
    pod("b", "4", "3.5"),
    pod("c", "1", "6", init=("2",)),
    PodCpu("d", "burstable", (ContainerCpu("c0", 4000),)),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([(each, c.name) for each in PODS for c in (*each.init, *each.containers)]),
        st.sampled_from([None, (0,), (1,), (0, 1), "remove", "remove"]),
    ),
    max_size=25,
)
OPTIONS = st.sampled_from(
    [
        (),
        (FULL,),
        (STRICT,),
        (FULL, STRICT, "prefer-align-cpus-by-uncorecache"),
        (FULL, "distribute-cpus-across-numa"),
        ("distribute-cpus-across-cores", STRICT),
        ("align-by-socket",),
    ]
)


@given(STEPS, OPTIONS, st.sampled_from(["0", "0,8", "0-2", "3-12"]))
def test_invariants_hold_after_every_step(
    steps: list[tuple[tuple[PodCpu, str], object]], names: tuple[str, ...], reserved: str
) -> None:
    chosen = policy(TWO, *names, reserved=reserved)
    state = initial = start(chosen, EMPTY)
    for (each, container), step in steps:
        if step == "remove":
            state = remove(state, each.uid, container)
        else:
            state, placement = allocate(chosen, state, each, container, step)  # type: ignore[arg-type]
            if isinstance(placement, Exclusive):
                assert placement.cpus == state.held(each.uid, container)
                whole = TWO.expand(TWO.whole(placement.cpus))
                assert FULL not in names or whole == placement.cpus
        check(chosen, state)
    for uid, containers in state.assigned.items():
        for container in containers:
            state = remove(state, uid, container)
    assert (state.default, state.assigned) == (initial.default, {})


def check(policy: StaticPolicy, state: StaticState) -> None:
    by_pod = []
    for each in PODS:
        running = assigned = 0
        for name, cpus in state.assigned.get(each.uid, {}).items():
            assigned |= cpus
            if not ends_before_others(each, name):
                assert not running & cpus, "running containers of a pod have different CPUs"
                running |= cpus
        assert not state.reusable_by(each.uid) & running
        by_pod.append(assigned)
    parts = [state.default, *by_pod]
    assert sum(parts) == policy.all_cpus, "every CPU is in exactly one set"
    for index, part in enumerate(parts):
        assert not any(part & other for other in parts[index + 1 :])
    assert state.default
    strict = policy.options.strict_cpu_reservation
    assert state.default & policy.reserved == (0 if strict else policy.reserved)
