from __future__ import annotations

import msgspec
import pytest

from agent.allocate.device_holders.holdings import claimed_cpus
from agent.allocate.device_holders.reported_devices import Carriers, of_carriers
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.holding import HoldingSource, ReportedDevices


def claim(
    uid: str = "a",
    driver: str = "dra.cpu",
    device: str = "cpudevnuma000",
    cdi: str = "dra.k8s.io/cpu=claim-5f-7e",
) -> ReportedDevices:
    return ReportedDevices(
        uid, "main", driver, (device,), HoldingSource.CLAIM, f"ns/{uid}", cdi=(cdi,)
    )


def environment(uid: str, variables: dict[str, str]) -> tuple[ReportedDevices, ...]:
    return of_carriers(uid, "main", Carriers(environment=tuple(variables.items())))


@pytest.mark.parametrize(
    "claims",
    [
        claim(),
        claim(device="cpudev003"),
        claim(driver="balloons.nri.io", cdi="balloons.nri.io/device=claim-5f-7e-0"),
        claim(driver="x", device="cpudevmachine"),
    ],
)
def test_cpus_are_owned_by_a_claim_and_its_variable(claims: ReportedDevices) -> None:
    found = claimed_cpus((claims, *environment("a", {"DRA_CPUSET_5f-7e": "2-3,5", "PATH": "/"})))
    assert found.by_uid == {"a": {"main": CpuSet([2, 3, 5])}}
    assert [(each.part, each.claim) for each in found.holdings] == [("2-3,5", "ns/a")]
    assert found.problems == ()


def test_a_container_may_have_two_claims() -> None:
    other = msgspec.structs.replace(claim(), cdi=("dra.k8s.io/cpu=claim-9",), claim="ns/b")
    variables = {"DRA_CPUSET_5f-7e": "2-3", "DRA_CPUSET_9": "7"}
    found = claimed_cpus((claim(), other, *environment("a", variables)))
    assert found.by_uid == {"a": {"main": CpuSet([2, 3, 7])}}
    assert [each.claim for each in found.holdings] == ["ns/a", "ns/b"]


@pytest.mark.parametrize(
    "claims",
    [
        (),
        (claim("b"),),
        (claim(cdi="dra.k8s.io/cpu=claim-5f"),),
        (claim(cdi=""),),
        (claim(driver="gpu.example", device="gpu-0"),),
        (msgspec.structs.replace(claim(), container="side"),),
    ],
)
def test_a_variable_without_its_claim_owns_no_cpu(claims: tuple[ReportedDevices, ...]) -> None:
    """A user can set such a variable next to a ResourceClaim. It would own the whole pool."""
    found = claimed_cpus((*claims, *environment("a", {"DRA_CPUSET_5f-7e": "0-127"})))
    assert (found.by_uid, found.holdings) == ({}, ())
    (problem,) = found.problems
    assert problem.endswith("CPUs 0-127 in a variable, and the kubelet reports no such claim")


@pytest.mark.parametrize(
    ("value", "reason"),
    [("dynamic", "'dynamic' does not name the CPUs"), (",", "',' is not a list of CPUs")],
)
def test_a_variable_without_a_cpu_is_reported(value: str, reason: str) -> None:
    found = claimed_cpus((claim(), *environment("a", {"DRA_CPUSET_5f-7e": value})))
    assert found.by_uid == {}
    assert [each.partition(" in a variable: ")[2] for each in found.problems] == [reason]


def test_a_claim_without_a_variable_owns_no_cpu() -> None:
    """The CPUs are its own only while its container runs."""
    assert claimed_cpus((claim(),)).by_uid == {}
