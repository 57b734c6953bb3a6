"""Refusals for several resources, and of groups."""

from __future__ import annotations

import pytest

from agent.allocate.refusal import Reason, Refusal, combined

FEW_CPUS = Refusal(Reason.NUMA_UNSATISFIED, "cpu", 4000, 1000, (0, 1))
NO_GPUS = Refusal(Reason.DEVICE_NO_DEVICES, "gpu")


def test_a_refusal_for_several_resources_names_each() -> None:
    both = combined([FEW_CPUS, NO_GPUS])
    assert both.reasons == (FEW_CPUS, NO_GPUS)
    assert both.text == (
        "cpu: the NUMA nodes do not have enough (requested 4, available 1, NUMA nodes 0,1); "
        "gpu: the node has none"
    )
    assert both.summary == "cpu: the NUMA nodes do not have enough; gpu: the node has none"
    assert combined([FEW_CPUS]) == FEW_CPUS


def test_a_refusal_of_a_group_names_what_its_members_lack() -> None:
    group = Refusal(Reason.GROUP, detail="no room for the group", others=(FEW_CPUS, NO_GPUS))
    assert group.summary == (
        "no room for the group: cpu: the NUMA nodes do not have enough; gpu: the node has none"
    )


@pytest.mark.parametrize(
    ("refusal", "unresolvable"),
    [
        (FEW_CPUS, False),
        (NO_GPUS, True),
        (combined([FEW_CPUS, NO_GPUS]), True),
        (Refusal(Reason.GROUP, detail="no room", others=(FEW_CPUS,)), False),
        (Refusal(Reason.GROUP, detail="no room", others=(NO_GPUS,)), True),
        (Refusal(Reason.NO_ZONE_HOLDS, "cpu", 4000, 1000, lasting=True), True),
    ],
    ids=["amount", "none", "both", "group", "group-none", "empty-node-too"],
)
def test_no_eviction_helps_if_one_of_the_reasons_lasts(
    refusal: Refusal, unresolvable: bool
) -> None:
    assert refusal.unresolvable is unresolvable
