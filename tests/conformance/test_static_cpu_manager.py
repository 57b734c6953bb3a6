from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.kubelet.static_policy import AllocationRefused, RefusalReason
from agent.model.cpu.layout import of
from agent.model.cpu.topology import Cpu
from agent.model.pod.exclusive_cpus import ContainerCpu, PodCpu, SharedReason
from conformance.static_cpu_manager import (
    EMPTY,
    Exclusive,
    Shared,
    StaticPolicy,
    StaticState,
    allocate,
    ends_before_others,
    pod_cpus,
    remove,
    start,
)
from tests.allocate.kubelet.nodes import Node, machine, mask, pod, policy, text
from tests.allocate.machines import MACHINES, masks

STRICT = "strict-cpu-reservation"
FULL = "full-pcpus-only"

TWO = machine(2, 1, 4, 2)
"""Cores 0-3 in node 0, 4-7 in node 1; core n has CPUs n and n + 8."""


@pytest.mark.parametrize(
    ("kube_class", "cpu_milli", "reason"),
    [
        ("burstable", 2000, SharedReason.NOT_GUARANTEED),
        ("guaranteed", 0, SharedReason.NO_REQUEST),
        ("guaranteed", 1500, SharedReason.FRACTION),
    ],
)
def test_reasons_for_the_shared_pool(kube_class: str, cpu_milli: int, reason: SharedReason) -> None:
    node = Node(policy(TWO))
    pod_ = PodCpu("a", kube_class, (ContainerCpu("c0", cpu_milli),))  # type: ignore[arg-type]
    assert node.place(pod_, "c0") == Shared(reason)
    assert node.default == "0-15"


def test_reserved_cpus_are_never_assigned() -> None:
    node = Node(policy(TWO, reserved="0-7"))
    assert node.refused(pod("a", "9"), "c0") == AllocationRefused(
        RefusalReason.NOT_ENOUGH_CPUS, 9, 8, 2
    )
    assert node.cpus(pod("a", "8"), "c0") == "8-15"
    assert node.default == "0-7"


@pytest.mark.parametrize(
    ("requested", "reason", "available"),
    [
        (3, RefusalReason.NO_WHOLE_CORES, 14),
        (16, RefusalReason.NOT_ENOUGH_CORES, 14),
    ],
)
def test_requests_that_whole_cores_cannot_satisfy_are_refused(
    requested: int, reason: RefusalReason, available: int
) -> None:
    node = Node(policy(TWO, FULL))
    assert node.refused(pod("a", str(requested)), "c0") == AllocationRefused(
        reason, requested, available, 2
    )


def test_a_container_with_assigned_cores_may_be_refused_again() -> None:
    """As in the kubelet, which checks the free CPUs first."""
    node = Node(policy(TWO, FULL))
    assigned = node.cpus(pod("a", "8"), "c0")
    assert node.refused(pod("a", "8"), "c0") == AllocationRefused(
        RefusalReason.NOT_ENOUGH_CORES, 8, 6, 2, mask(assigned)
    )


def test_no_half_core_is_assigned_when_the_reservation_splits_cores() -> None:
    node = Node(policy(machine(2, 1, 2, 2), FULL, reserved="0-2"))
    assert node.cpus(pod("a", "2"), "c0", 0) == "3,7"
    assert node.refused(pod("b", "2"), "c0").reason is RefusalReason.NOT_ENOUGH_CORES


def test_half_cores_of_older_assignments_are_not_assigned() -> None:
    found = StaticState(mask("0-2,4-7"), {"old": {"c0": mask("3")}})
    node = Node(policy(machine(1, 1, 4, 2), FULL), found)
    assert node.cpus(pod("a", "4"), "c0") == "1-2,5-6"
    refused = node.refused(pod("b", "2"), "c0")
    assert refused.reason is RefusalReason.NOT_ENOUGH_CORES


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


def test_the_default_set_is_never_emptied() -> None:
    node = Node(policy(TWO, STRICT, reserved="0-7"))
    assert node.refused(pod("a", "8"), "c0") == AllocationRefused(
        RefusalReason.DEFAULT_EMPTIED, 8, 8, 2
    )
    assert node.cpus(pod("a", "7"), "c0") == "8-14"
    assert node.refused(pod("b", "1"), "c0").reason is RefusalReason.DEFAULT_EMPTIED


def test_a_restarted_init_container_gets_no_cpus_of_running_containers() -> None:
    node = Node(policy(TWO))
    with_init = pod("a", "2", "2", init=("4",))
    node.cpus(with_init, "i0")
    assigned = mask(node.cpus(with_init, "c0"))
    node.place(with_init, "i0")
    assert not mask(node.cpus(with_init, "c1")) & assigned


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


@pytest.mark.parametrize(
    ("containers", "init", "expected"),
    [
        ((), (), 0),
        (("2", "3"), (), 5),
        (("2", "1.5"), (), 2),
        (("2",), ("4", "3"), 4),
        (("2",), ("4", "3s"), 5),
        (("2",), ("3s", "4"), 7),
        (("2",), ("1s", "2s", "1"), 5),
        (("2",), ("3.5s", "4"), 4),
    ],
)
def test_cpus_of_a_pod_are_the_most_that_run_at_once(
    containers: tuple[str, ...], init: tuple[str, ...], expected: int
) -> None:
    assert pod_cpus(pod("a", *containers, init=init)) == expected
