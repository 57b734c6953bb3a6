from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.kubelet.static_policy import NotEnoughCpusError
from agent.allocate.reserved_cpus import cpus_for, reserved_are_full, reserved_cpus
from agent.model.cpu.layout import of
from agent.model.nrt.node_annotations import RESERVATION, node_reservation
from agent.model.pod.annotations import AnnotationError
from conformance.machines import cpus

LAYOUT = of(cpus([1, 1, 4, 2], "interleaved"))


@pytest.mark.parametrize(
    ("cpu_milli", "chosen"), [(0, ""), (100, "0"), (1000, "0"), (1001, "0,4"), (3000, "0-1,4")]
)
def test_an_amount_takes_whole_cpus_core_by_core(cpu_milli: int, chosen: str) -> None:
    assert str(cpus_for(LAYOUT, cpu_milli)) == chosen


def test_an_amount_beyond_the_layout() -> None:
    with pytest.raises(NotEnoughCpusError):
        cpus_for(LAYOUT, 8001)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("{}", ""),
        ('{"resources": {"memory": "1Gi"}}', ""),
        ('{"resources": {"cpu": "1500m"}}', "0,4"),
        ('{"reservedCPUs": "2,6"}', "2,6"),
        ('{"reservedCPUs": "2", "resources": {"cpu": "3"}}', "2"),
    ],
)
def test_listed_cpus_override_an_amount(text: str, chosen: str) -> None:
    assert str(reserved_cpus(LAYOUT, node_reservation({RESERVATION: text}))) == chosen


def test_an_amount_beyond_the_machine_is_refused_with_its_annotation() -> None:
    reservation = node_reservation({RESERVATION: '{"resources": {"cpu": 9}}'})
    with pytest.raises(AnnotationError, match=r"reservation: resources\.cpu: 9 CPUs were req"):
        reserved_cpus(LAYOUT, reservation)


@pytest.mark.parametrize(
    ("before", "busy_cpus", "be_cpus", "full"),
    [
        (False, 1.7, 1.7, False),
        (False, 1.8, 1.8, True),
        (False, 2.0, 0.0, True),
        (True, 0.5, 0.6, True),
        (True, 0.5, 0.5, False),
        (True, 0.0, 4.0, True),
        (True, 1.9, 0.0, True),
    ],
)
def test_two_reserved_cpus_are_full_when_busy_until_they_have_room_again(
    before: bool, busy_cpus: float, be_cpus: float, full: bool
) -> None:
    assert reserved_are_full(2, busy_cpus, be_cpus, before=before) == full


@given(
    reserved=st.integers(1, 8),
    others=st.integers(0, 56),
    be_cpus=st.floats(0, 64),
    other_cpus=st.floats(0, 8),
    before=st.booleans(),
)
def test_a_constant_load_changes_the_decision_at_most_once(
    reserved: int, others: int, be_cpus: float, other_cpus: float, before: bool
) -> None:
    """`be_cpus`: the demand of BE pods, spread evenly over all their CPUs; `other_cpus`: that of
    other processes on the reserved CPUs."""
    decisions = [before]
    for _ in range(4):
        pool = reserved + others if decisions[-1] else reserved
        used = min(be_cpus, pool)
        busy = min(other_cpus + used * reserved / pool, reserved)
        decisions.append(reserved_are_full(reserved, busy, used, before=decisions[-1]))
    assert sum(one != other for one, other in pairwise(decisions)) <= 1
