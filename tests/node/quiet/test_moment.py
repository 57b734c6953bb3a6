"""The owners that ask, and where what disturbs them goes."""

from __future__ import annotations

import msgspec
import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import NO_QUOTA
from agent.model.pod.annotations import CRIO_INTERRUPTS, CRIO_QUOTA, QUIET, SHARED_CONTAINERS
from agent.node.quiet.moment import QuietMoment, quiet_owners
from tests.builders import machine, pod
from tests.node.quiet.quieted import decided, moment_of, quiet_pod

ASKS = {QUIET: "interrupts"}


@pytest.mark.parametrize(
    ("asking", "others", "unowned", "left"),
    [
        ("2-3", "", "0-1,4-7", "0-1,4-7"),
        ("2-3", "4", "0-1,5-7", "0-1,5-7"),
        ("0-5", "6-7", "", "6-7"),
        ("0-7", "", "", ""),
    ],
)
def test_it_goes_where_nobody_owns_else_where_owners_do_not_ask(
    asking: str, others: str, unowned: str, left: str
) -> None:
    pods = [quiet_pod("asks", asking, ASKS)]
    pods += [quiet_pod("other", others, {QUIET: "c-states"})] if others else []
    moment = moment_of(pods)
    assert str(moment.quiet("interrupts")) == asking
    assert str(moment.unowned) == unowned
    assert str(moment.left("interrupts")) == left
    assert [owner.title for owner in moment.asking("interrupts")] == ["ns/asks"]
    assert not moment.quiet("frequency")


def test_cpus_that_are_offline_are_no_place_to_go() -> None:
    moment = moment_of([quiet_pod("asks", "2-3", ASKS)], machine(1, 8, offline="5-7"))
    assert str(moment.left("interrupts")) == "0-1,4"


@pytest.mark.parametrize(("isolated", "left"), [("0-1", "4-7"), ("4-7", "0-1"), ("0-7", "0-1,4-7")])
def test_cpus_that_the_kernel_isolates_are_used_last(isolated: str, left: str) -> None:
    moment = moment_of([quiet_pod("asks", "2-3", ASKS)], machine(1, 8, isolated=isolated))
    assert str(moment.left("interrupts")) == left


def test_nothing_is_asked_of_a_feature_that_is_off() -> None:
    moment = QuietMoment()
    assert not moment.quiet("interrupts")
    assert not moment.left("interrupts")
    assert not moment.unowned


def test_an_owner_has_its_cpus_by_container() -> None:
    shared = {**ASKS, SHARED_CONTAINERS: "proxy"}
    (owner,) = moment_of([quiet_pod("own", "2-3", shared, "LSE", "main", "proxy")]).owners
    assert owner.containers == {"main": CpuSet.parse("2-3")}
    assert owner.cpus == CpuSet.parse("2-3")


@pytest.mark.parametrize("annotations", [{}, {CRIO_QUOTA: "disable"}, {CRIO_QUOTA: "enable"}])
def test_a_container_with_cpus_of_its_own_has_no_quota_whatever_its_pod_asks_for(
    annotations: dict[str, str],
) -> None:
    pods = [quiet_pod("own", "2-3", annotations), pod("ls", "LS")]
    own = decided(pods, machine(1, 8)).pods["own"].of("main")
    assert own.resources.quota is NO_QUOTA
    assert not moment_of(pods).owners


def test_be_pods_run_on_the_cpus_of_lsr_pods_alone() -> None:
    pods = [quiet_pod("lse", "2", ASKS), quiet_pod("lsr", "3", ASKS, "LSR")]
    assert [(owner.title, owner.alone) for owner in moment_of(pods).owners] == [
        ("ns/lse", True),
        ("ns/lsr", False),
    ]


def test_only_owners_ask_and_only_their_errors_count() -> None:
    bad = {CRIO_INTERRUPTS: "sometimes"}
    shares = msgspec.structs.replace(pod("shares", "LS"), annotations=bad | ASKS)
    pods = [shares, quiet_pod("own", "2", bad)]
    owners, refusals = quiet_owners(pods, decided(pods, machine(1, 8)), frozenset({"frequency"}))
    assert [(owner.title, owner.wishes.features) for owner in owners] == [("ns/own", {"frequency"})]
    assert [(refusal.uid, refusal.key) for refusal in refusals] == [("own", CRIO_INTERRUPTS)]


def test_each_pod_of_a_claim_asks_for_itself() -> None:
    pods = [quiet_pod("first", "2-3", {}), pod("second", "LS")]
    pods[1] = msgspec.structs.replace(pods[1], annotations=ASKS)
    decision = decided(pods, machine(1, 8))
    (owner,) = decision.owners
    sharing = msgspec.structs.replace(owner, sharers=("second",))
    decision = msgspec.structs.replace(decision, owners=(sharing,))
    ((second,), refusals) = quiet_owners(pods, decision, frozenset())
    assert (second.title, str(second.cpus)) == ("ns/second", "2-3")
    assert not refusals
