"""A container that qualifies for exclusive CPUs by the node's policy, until the agent decides."""

from __future__ import annotations

import msgspec
import pytest

from agent.hooks.requests import Changes, Creation
from agent.model.devices.visibility import Mount
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.notifications import ContainerAnnounced, ContainerFailed, Created
from agent.model.pod.qos import QoS
from agent.model.settings.frontends import CREATE
from agent.model.snapshot import CpuPolicy, Owner, PodWanted, Snapshot, Wanted
from agent.model.verdict import Code, Refuse, Wait
from tests.hooks.admission_harness import HOLD_SECONDS, AdmissionHarness, container
from tests.hooks.snapshots import EMPTY

STATIC = msgspec.structs.replace(EMPTY, cpu_policy="static")
REQUEST = msgspec.structs.replace(
    container("g", kube=""),
    requested=LinuxResources(shares=1024, hugepages={2 << 20: 4 << 20}),
)
ANNOUNCED = ContainerAnnounced(REQUEST.pod, "main", REQUEST.requested)
FAILED = ContainerFailed("g", "main")


def decided(wanted: Wanted, policy: CpuPolicy = "static") -> Snapshot:
    return msgspec.structs.replace(
        STATIC,
        cpu_policy=policy,
        owners=(Owner("g", "ns/g", QoS.LSE, "1"),),
        pods={
            "g": PodWanted(
                LinuxResources("ns/g"), QoS.LS, Wanted(LinuxResources("0,2-3")), {"main": wanted}
            )
        },
    )


OWN = Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True)


@pytest.fixture
def held(harness: AdmissionHarness) -> Creation:
    """The container is announced, and its creation is held."""
    harness.publish(STATIC)
    creation = harness.creation(REQUEST)
    assert harness.create(creation) == Wait()
    assert harness.notifications() == [ANNOUNCED]
    return creation


@pytest.mark.parametrize(
    ("policy", "wanted", "mounts"),
    [
        ("static", OWN, ()),
        ("dynamic", OWN, (Mount("/state/containers/g/main", "/run/topolet"),)),
        ("dynamic", Wanted(LinuxResources("0,2-3")), ()),
    ],
)
def test_a_container_has_its_cpus_and_its_folder_if_they_can_change(
    harness: AdmissionHarness,
    held: Creation,
    policy: CpuPolicy,
    wanted: Wanted,
    mounts: tuple[Mount, ...],
) -> None:
    harness.publish(decided(wanted, policy))
    cpus = wanted.resources.cpuset
    assert harness.create(held) == Changes(LinuxResources(cpus), mounts=mounts)
    harness.admission.created(held, "c")
    (created,) = harness.notifications()
    assert isinstance(created, Created)
    assert (created.container_id, created.requested) == ("c", REQUEST.requested)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (STATIC, "the agent has not decided about this container"),
        (decided(Wanted(LinuxResources("0"), blocked="no CPUs are free")), "no CPUs are free"),
    ],
)
def test_without_cpus_a_container_is_refused_and_its_announcement_withdrawn(
    harness: AdmissionHarness, held: Creation, answer: Snapshot, why: str
) -> None:
    """By the policy of the class LSR."""
    harness.publish(answer)
    harness.wait(HOLD_SECONDS)
    refusal = Refuse(Code.UNAVAILABLE, f"pod ns/g: no CPUs after 60 s: {why}")
    assert harness.create(held) == refusal
    assert harness.notifications() == [FAILED]
    assert harness.outcomes.failed == {(CREATE, "LSR", "timeout"): 1}


@pytest.mark.parametrize("end", ["cancelled", "not created", "unhooked"])
def test_a_container_that_is_not_created_withdraws_its_announcement(
    harness: AdmissionHarness, held: Creation, end: str
) -> None:
    if end == "cancelled":
        harness.admission.abandoned(held)
    elif end == "unhooked":
        harness.admission.unhooked(CREATE, held, "timeout", "the plugin ends")
    else:
        harness.publish(decided(OWN))
        harness.create(held)
        harness.admission.created(held, "")
    assert harness.notifications() == [FAILED]
