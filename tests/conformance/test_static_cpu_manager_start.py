from __future__ import annotations

import pytest

from agent.allocate.kubelet.static_policy import PolicyStartError, StartProblem
from agent.model.cpu.policies import NumaPolicy
from conformance.static_cpu_manager import (
    StaticPolicy,
    StaticState,
    make,
    make_with_count,
    start,
)
from tests.allocate.kubelet.nodes import Node, machine, mask, options, policy, text

STRICT = "strict-cpu-reservation"

TWO = machine(2, 1, 4, 2)
"""Cores 0-3 in node 0, 4-7 in node 1; core n has CPUs n and n + 8."""


def start_error(policy: StaticPolicy, found: StaticState) -> PolicyStartError:
    with pytest.raises(PolicyStartError) as error:
        start(policy, found)
    return error.value


def test_the_default_set_of_a_new_node_has_all_cpus() -> None:
    assert Node(policy(TWO, reserved="0,8")).default == "0-15"


def test_strictly_reserved_cpus_are_not_shared() -> None:
    assert Node(policy(TWO, STRICT, reserved="0,8")).default == "1-7,9-15"


def test_reserved_cpus_are_chosen_by_the_same_algorithm() -> None:
    assert text(make_with_count(TWO, options(), NumaPolicy.NONE, 3).reserved) == "0-1,8"


@pytest.mark.parametrize(
    ("count", "problem"), [(17, StartProblem.RESERVED_TOO_MANY), (16, None), (0, None)]
)
def test_only_existing_cpus_can_be_reserved(count: int, problem: StartProblem | None) -> None:
    if problem is None:
        assert make_with_count(TWO, options(), NumaPolicy.NONE, count).reserved.bit_count() == count
        return
    with pytest.raises(PolicyStartError, match="17 CPUs") as error:
        make_with_count(TWO, options(), NumaPolicy.NONE, count)
    assert error.value.problem is problem


def test_reserved_cpus_must_exist() -> None:
    with pytest.raises(PolicyStartError, match="reserved CPUs do not exist: 16-17") as error:
        make(TWO, options(), NumaPolicy.NONE, mask("0,16-17"))
    assert error.value.problem is StartProblem.RESERVED_UNKNOWN
    assert text(error.value.cpus) == "16-17"


@pytest.mark.parametrize(
    ("strict", "default", "assigned", "problem", "cpus"),
    [
        pytest.param(False, "", "3", StartProblem.DEFAULT_EMPTY, "", id="no default set"),
        pytest.param(False, "1-15", "", StartProblem.RESERVED_NOT_SHARED, "0", id="not shared"),
        pytest.param(True, "0-15", "", StartProblem.RESERVED_SHARED, "0", id="shared"),
        pytest.param(False, "0-15", "3", StartProblem.ASSIGNED_AND_SHARED, "3", id="in both"),
        pytest.param(False, "0-14", "", StartProblem.OTHER_CPUS, "15", id="CPUs missing"),
        pytest.param(False, "0-15,20", "", StartProblem.OTHER_CPUS, "20", id="CPUs unknown"),
        pytest.param(True, "1-14", "15", None, "", id="strict and valid"),
        pytest.param(False, "0-2,4-15", "3", None, "", id="valid"),
    ],
)
def test_checks_of_a_stored_state(
    strict: bool, default: str, assigned: str, problem: StartProblem | None, cpus: str
) -> None:
    chosen = policy(TWO, *[STRICT] * strict)
    found = StaticState(mask(default), {"a": {"c0": mask(assigned)}} if assigned else {})
    if problem is None:
        assert start(chosen, found) == found
        return
    error = start_error(chosen, found)
    assert (error.problem, text(error.cpus)) == (problem, cpus)
    if problem is StartProblem.ASSIGNED_AND_SHARED:
        assert error.subject == "a/c0"


def test_two_pods_with_the_same_cpus_are_an_error() -> None:
    twice = StaticState(mask("0-2,5-15"), {"a": {"c0": mask("3-4")}, "b": {"c0": mask("4")}})
    error = start_error(policy(TWO), twice)
    assert (error.problem, error.subject) == (StartProblem.ASSIGNED_TWICE, "b/c0")
    reused = StaticState(mask("0-2,5-15"), {"a": {"i0": mask("3-4"), "c0": mask("4")}})
    assert start(policy(TWO), reused) == reused
