"""The CPUs that a claim gets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.dra.groups import GroupRules, groups
from agent.allocate.dra.preparation import (
    PreparationError,
    PreparationRules,
    counted,
    prepared,
    restored,
)
from agent.model.cpu import layout as layouts
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.layout import NOTHING_HELD
from agent.model.cpu.policies import BindPolicy, CpuGrouping, ExclusivePolicy
from agent.model.cpu.topology import Cpu
from agent.model.dra.cpu_parameters import ClaimMemoryPolicy, CpuParameters, CpuSpread
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup
from agent.model.dra.resource_claim import ClaimedGroup, CpuResourceClaim
from tests.allocate.dra.node import ALL, FOUR_NODES, topology

LAYOUT = layouts.of_topology(FOUR_NODES)
RULES = PreparationRules()
FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS


def group(count: int | None, device: str = "numa-node-0", **fields: Any) -> ClaimedGroup:
    cpu_milli = None if count is None else count * 1000
    request = fields.pop("request", "a")
    pool = fields.pop("pool", "n1")
    admin = fields.pop("admin", False)
    share = fields.pop("share", None)
    parameters = CpuParameters(**fields)
    return ClaimedGroup(
        request, pool, device, cpu_milli, share=share, admin=admin, parameters=parameters
    )


def prepare(
    *claimed: ClaimedGroup,
    others: str = "",
    rules: PreparationRules = RULES,
    grouping: CpuGrouping = CpuGrouping.NUMA_NODE,
    counts: Any = NOTHING_HELD,
) -> PreparedClaim:
    of_node = groups(
        FOUR_NODES,
        LAYOUT,
        ALL,
        CpuSet.parse(others),
        GroupRules(grouping),
        {},
        pool_left=True,
    )
    claim = CpuResourceClaim("u", "ns", "c", True, claimed)
    by_name = {each.name: each for each in of_node}
    return prepared(claim, "n1", by_name, LAYOUT, counts, rules)


@pytest.mark.parametrize(
    ("claimed", "others", "cpus"),
    [
        (group(4), "", "0-3"),
        (group(4), "0-1", "4-7"),  # one L3 cache
        (group(3), "0,3", "4-6"),
        (group(4, cpu_bind_policy=SPREAD), "", "0,2,4,6"),
        (group(4, spread=CpuSpread.EVENLY), "", "0-1,4-5"),
        (group(2, spread=CpuSpread.EVENLY, cpu_bind_policy=SPREAD), "", "0,4"),
        (group(6, spread=CpuSpread.EVENLY), "0-1", "2-7"),
        (group(2, "numa-node-3"), "", "24-25"),
        (group(2, cpus="5,7"), "0-3", "5,7"),
        (group(None, "numa-node-2"), "", "16-23"),
        (group(4, admin=True), "0-7", ""),
        (ClaimedGroup("a", "n1", "numa-node-0", 1500), "", "0-1"),
    ],
)
def test_the_cpus_of_a_device(claimed: ClaimedGroup, others: str, cpus: str) -> None:
    (of_request,) = prepare(claimed, others=others).groups
    assert of_request.cpus == cpus


def test_a_core_is_given_whole() -> None:
    (of_request,) = prepare(group(None, "core-4"), grouping=CpuGrouping.CORE).groups
    assert of_request.cpus == "4-5"


def test_a_claim_is_restored_by_what_its_containers_were_told() -> None:
    claimed = (
        group(2, request="a/first", share="s-1"),
        group(4, request="a/first", shared=True),
        group(None, "numa-node-1", request="b", memory_policy=ClaimMemoryPolicy.BIND),
        group(1, request="c", admin=True),
    )
    before = prepare(*claimed)
    told = PreparedClaim(
        "u",
        "ns",
        "c",
        tuple(
            PreparedGroup(part.request, part.pool, part.device, part.cpus)
            for part in before.groups
            if part.cpus
        ),
    )
    claim = CpuResourceClaim("u", "ns", "c", True, claimed)
    assert restored(claim, told, "n1") == before
    for groups_told in (told.groups[:2], told.groups[1:], (*told.groups[:1] * 2, told.groups[2])):
        with pytest.raises(PreparationError, match="its files do not have its CPUs"):
            restored(claim, PreparedClaim("u", "ns", "c", groups_told), "n1")
    with pytest.raises(PreparationError, match="is not of this node"):
        restored(claim, told, "n2")


def test_requests_of_a_claim_share_no_cpu() -> None:
    claim = prepare(group(4), group(4, request="b"), group(1, "numa-node-1", request="c"))
    assert [each.cpus for each in claim.groups] == ["0-3", "4-7", "8"]


def test_exclusive_claims_avoid_the_cores_of_each_other() -> None:
    other = PreparedGroup("a", "n1", "numa-node-0", "0", exclusive=ExclusivePolicy.PCPU_LEVEL)
    counts = counted({"v": PreparedClaim("v", "ns", "d", (other,))})
    exclusive = group(1, cpu_exclusive_policy=ExclusivePolicy.PCPU_LEVEL, cpu_bind_policy=SPREAD)
    assert prepare(exclusive, others="0", counts=counts).groups[0].cpus == "2"
    assert prepare(group(7), others="0", counts=counts).groups[0].cpus == "1-7"


def test_what_is_kept_of_the_parameters() -> None:
    bound = group(1, shared=True, memory_policy=ClaimMemoryPolicy.BIND)
    (of_request,) = prepare(bound).groups
    assert (of_request.shared, of_request.bind_memory) == (True, True)
    of_node = PreparationRules(bind_memory=True)
    assert prepare(group(1), rules=of_node).groups[0].bind_memory
    free = group(1, memory_policy=ClaimMemoryPolicy.ANY)
    assert not prepare(free, rules=of_node).groups[0].bind_memory


def test_memory_of_a_claim_comes_from_its_numa_node() -> None:
    amounts = {"memory": 1 << 30}
    for policy, bound in ((None, True), (ClaimMemoryPolicy.ANY, False)):
        parameters = CpuParameters(memory_policy=policy)
        claimed = ClaimedGroup("a", "n1", "numa-node-0", 1000, amounts, parameters=parameters)
        (of_request,) = prepare(claimed).groups
        assert (of_request.bind_memory, of_request.amounts) == (bound, amounts)


@pytest.mark.parametrize(
    ("claimed", "others", "message"),
    [
        (group(5), "0-3", "device numa-node-0: the claim needs 5 CPUs, and 4 are free (4-7)"),
        (
            group(4, cpu_bind_policy=FULL),
            "0,2,4",
            "the claim needs 4 CPUs by FullPCPUs, and 2 are free (1,3,5-7); schedulers count CPUs, "
            "not whole cores: the label node.koordinator.sh/cpu-bind-policy=FullPCPUsOnly of the "
            "Node makes it offer whole cores alone",
        ),
        (group(1, "numa-node-9"), "", "request a: device numa-node-9 does not exist"),
        (group(1, pool="n2"), "", "pool n2 is not of this node"),
        (group(1, cpus="9"), "", "numa-node-0 has no CPUs 9, which the claim names"),
        (group(1, cpus="1-2"), "", "the claim names 2 CPUs (1-2), and has 1"),
        (group(2, cpus="1-2"), "2", "CPUs 2, which the claim names, are not free"),
    ],
)
def test_what_the_node_does_not_have_is_refused(
    claimed: ClaimedGroup, others: str, message: str
) -> None:
    with pytest.raises(PreparationError) as raised:
        prepare(claimed, others=others)
    assert str(raised.value).startswith("ResourceClaim ns/c, request a")
    assert message in str(raised.value)


def test_the_text_of_a_refusal_has_the_beginning_of_a_long_list_of_cpus() -> None:
    """It goes into the log, an Event and the audit trail."""
    wide = topology(tuple(Cpu(id_, id_ & ~1, 0, 0, 0, 0) for id_ in range(512)))
    layout = layouts.of_topology(wide)
    odd = CpuSet(range(1, 512, 2))
    of_node = groups(wide, layout, wide.online, odd, GroupRules(), {}, pool_left=True)
    by_name = {each.name: each for each in of_node}
    even = str(wide.online - odd)
    for claimed, whole_cores in (
        (group(300), False),
        (group(3, cpus=even), False),
        (group(256, cpus=str(odd)), False),
        (group(256, cpus=even), True),
        (group(2048, cpus=str(CpuSet(range(1, 4096, 2)))), False),
    ):
        claim = CpuResourceClaim("u", "ns", "c", True, (claimed,))
        rules = PreparationRules(whole_cores=whole_cores)
        with pytest.raises(PreparationError, match=r"\d,\.\.\.") as raised:
            prepared(claim, "n1", by_name, layout, NOTHING_HELD, rules)
        assert len(str(raised.value)) < 300


def test_no_parameter_splits_a_core_where_a_node_gives_whole_ones() -> None:
    whole = PreparationRules(whole_cores=True)
    spread = prepare(group(4, cpu_bind_policy=SPREAD), rules=whole)
    evenly = prepare(group(4, cpu_bind_policy=SPREAD, spread=CpuSpread.EVENLY), rules=whole)
    named = prepare(group(2, cpus="6-7"), rules=whole)
    assert [str(claim.cpus) for claim in (spread, evenly, named)] == ["0-3", "0-1,4-5", "6-7"]
    with pytest.raises(PreparationError, match="names CPUs 1-2, which split a core"):
        prepare(group(2, cpus="1-2"), rules=whole)


@pytest.mark.hypothesis
@given(st.data())
def test_claims_never_share_a_cpu(draw: st.DataObject) -> None:
    """Any sequence of claims: each gets exactly what it has, of its own device, or is refused."""
    claims: dict[str, PreparedClaim] = {}
    for index in range(draw.draw(st.integers(1, 8))):
        taken = EMPTY
        for claim in claims.values():
            taken |= claim.cpus
        node = draw.draw(st.integers(0, 3))
        count = draw.draw(st.integers(1, 8))
        claimed = group(
            count,
            f"numa-node-{node}",
            cpu_bind_policy=draw.draw(st.sampled_from((None, FULL, SPREAD))),
            cpu_exclusive_policy=draw.draw(st.sampled_from(ExclusivePolicy)),
            spread=draw.draw(st.sampled_from((None, *CpuSpread))),
        )
        whole_cores = draw.draw(st.booleans())
        try:
            claim = prepare(
                claimed,
                others=str(taken),
                counts=counted(claims),
                rules=PreparationRules(whole_cores=whole_cores),
            )
        except PreparationError:
            if not whole_cores and claimed.parameters.cpu_bind_policy is None:
                of_device = CpuSet(range(8 * node, 8 * node + 8))
                assert len(of_device - taken) < count
            continue
        assert len(claim.cpus) == count
        assert not claim.cpus & taken
        assert claim.cpus <= CpuSet(range(8 * node, 8 * node + 8))
        claims[str(index)] = claim
