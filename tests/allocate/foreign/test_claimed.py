from __future__ import annotations

import pytest

from agent.allocate.foreign.carriers import Carriers, grants
from agent.allocate.foreign.claimed import claimed_cpus
from agent.model.cpuset import CpuSet
from agent.model.holding import Grant, Source


def claim(uid: str, driver: str = "dra.cpu", device: str = "cpudevnuma000") -> Grant:
    return Grant(uid, "main", driver, (device,), Source.CLAIM, f"ns/{uid}")


def shows(uid: str, **variables: str) -> tuple[Grant, ...]:
    return grants(uid, "main", Carriers(environment=tuple(variables.items())))


@pytest.mark.parametrize(
    "given",
    [
        claim("a"),
        claim("a", device="cpudev003"),
        claim("a", "topology-aware.nri.io"),
        claim("a", "x", "cpudevmachine"),
    ],
)
def test_claim_and_variable_together_say_which_cpus(given: Grant) -> None:
    found = claimed_cpus((given, *shows("a", DRA_CPUSET_x="2-3", DRA_CPUSET_y="5", PATH="/")))
    assert found.by_uid == {"a": {"main": CpuSet([2, 3, 5])}}
    assert [(each.part, each.claim) for each in found.holdings] == [("2-3", "ns/a"), ("5", "ns/a")]
    assert found.problems == ()


@pytest.mark.parametrize(
    "given",
    [
        (),
        (claim("b"),),
        (claim("a", "gpu.nvidia.com", "gpu-0"),),
        (Grant("a", "side", "dra.cpu", ("cpudev0",), Source.CLAIM),),
    ],
)
def test_a_variable_alone_takes_no_cpu(given: tuple[Grant, ...]) -> None:
    """Whoever makes a pod can write one: it would take the whole pool."""
    found = claimed_cpus((*given, *shows("a", DRA_CPUSET_x="0-127")))
    assert (found.by_uid, found.holdings) == ({}, ())
    (problem,) = found.problems
    assert problem == "pod a, main: CPUs 0-127 in a variable, and no claim by the kubelet's word"


@pytest.mark.parametrize(
    ("value", "why"),
    [("dynamic", "'dynamic' does not say which CPUs they are"), (",", "',' is no list of CPUs")],
)
def test_a_variable_that_names_no_cpu_is_told(value: str, why: str) -> None:
    found = claimed_cpus((claim("a"), *shows("a", DRA_CPUSET_x=value)))
    assert found.by_uid == {}
    assert [each.partition(" in a variable: ")[2] for each in found.problems] == [why]


def test_a_claim_without_a_variable_takes_no_cpu() -> None:
    """It has them only while its container runs."""
    assert claimed_cpus((claim("a"),)).by_uid == {}
