"""Invariants on any node with any pods: nothing is allocated twice, and nothing free is
withheld."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocation import NodeAllocation, TopologyOptions
from agent.allocate.node_allocator.cpus import cpu_offer, unavailable
from agent.allocate.policies_in_force import NodePolicies, Profile
from agent.allocate.refusal import Refusal
from agent.model.cpu import layout
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import NUMA_STRATEGIES, BindPolicy, NumaPolicy
from agent.model.pod.annotations import ResourceSpec
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import ResourceRequest
from tests.allocate.machines import MACHINES

MEMORY = 10


@st.composite
def nodes(draw: st.DrawFn) -> TopologyOptions:
    made = layout.of(draw(MACHINES))
    ids = sorted(CpuSet.from_int(made.cpus))
    zones = {
        area.id: {
            "cpu": max(0, 1000 * (area.cpus.bit_count() + draw(st.sampled_from([0, 0, 2, -1])))),
            "memory": MEMORY,
        }
        for area in made.nodes
    }
    return TopologyOptions(
        made,
        zones,
        never_owned=CpuSet(draw(st.lists(st.sampled_from(ids), max_size=4))),
        policies=NodePolicies(numa_label=draw(st.sampled_from(NumaPolicy))),
        profile=Profile(
            NumaPolicy.NONE, draw(st.sampled_from(NUMA_STRATEGIES)), packed=draw(st.booleans())
        ),
        cpu_ratio=draw(st.sampled_from([1.0, 1.0, 1.1, 1.5, 2.0])),
    )


binds = st.sampled_from([None, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS])
owners = st.builds(
    lambda cpus, memory, required: ResourceRequest(
        "",
        "",
        QoS.LSR,
        owner=True,
        requests={"cpu": 1000 * cpus, "memory": memory},
        spec=ResourceSpec(required=required),
    ),
    st.integers(1, 9),
    st.integers(1, MEMORY),
    binds,
)
ls_pods = st.builds(
    lambda cpu_milli, memory, limit: ResourceRequest(
        "",
        "",
        requests={"cpu": cpu_milli, "memory": memory},
        cpu_limit_milli=limit,
        spec=ResourceSpec(BindPolicy.CONSTRAINED_BURST if limit else BindPolicy.DEFAULT),
    ),
    st.integers(1, 9000),
    st.integers(1, MEMORY),
    st.none() | st.integers(1, 12_000),
)


@given(nodes(), st.lists(owners | ls_pods, max_size=8))
def test_every_offer_can_be_committed_and_nothing_is_allocated_twice(
    node: TopologyOptions, pod_requests: list[ResourceRequest]
) -> None:
    node_allocation = NodeAllocation(node)
    made = node.layout
    assert made
    owned = 0
    ratio = Fraction(str(node.cpu_ratio))
    used = {(id_, name): Fraction(0) for id_ in node.numa_allocatable for name in ("cpu", "memory")}
    for number, request in enumerate(pod_requests):
        got = cpu_offer(node, node_allocation, _named(request, f"p{number}"))
        if isinstance(got, Refusal):
            continue
        claim = got.allocation
        assert not unavailable(node, node_allocation, request, claim)
        node_allocation.add(claim)
        cpus = claim.cpus.mask
        assert not cpus & (owned | node.never_owned.mask)
        assert cpus.bit_count() == (request.requests["cpu"] // 1000 if request.owner else 0)
        cores = [made.expand(1 << lead) & cpus for lead in CpuSet.from_int(made.touched(cpus))]
        if request.spec.required is BindPolicy.FULL_PCPUS:
            assert made.expand(made.touched(cpus)) == cpus
        if request.spec.required is BindPolicy.SPREAD_BY_PCPUS:
            assert all(core.bit_count() == 1 for core in cores)
        owned |= cpus
        for id_, amounts in claim.amounts.items():
            assert all(amount > 0 for amount in amounts.values())
            for name, amount in amounts.items():
                # Floats round 3000 x 1.1 up to 3301.
                paid = amount * ratio if cpus and name == "cpu" else amount
                used[id_, name] += paid
        if request.cpu_limit_milli:
            held = [area for area in made.nodes if claim.amounts.get(area.id, {}).get("cpu")]
            pool = sum((area.cpus & ~(owned | node.never_owned.mask)).bit_count() for area in held)
            assert 1000 * pool >= request.cpu_limit_milli
    for area in made.nodes:
        zone = node.numa_allocatable[area.id]
        sold = max(0, zone["cpu"] - 1000 * (area.cpus & node.never_owned.mask).bit_count())
        assert used[area.id, "cpu"] <= node.amplified(sold)
        assert used[area.id, "memory"] <= zone["memory"]


@given(nodes(), st.lists(owners | ls_pods, max_size=6), owners | ls_pods)
def test_a_pod_is_declined_only_when_it_does_not_fit(
    node: TopologyOptions, before: list[ResourceRequest], last: ResourceRequest
) -> None:
    node_allocation = NodeAllocation(node)
    for number, request in enumerate(before):
        got = cpu_offer(node, node_allocation, _named(request, f"p{number}"))
        if not isinstance(got, Refusal):
            node_allocation.add(got.allocation)
    if last.spec != ResourceSpec():
        return
    declined = isinstance(cpu_offer(node, node_allocation, _named(last, "last")), Refusal)
    policy = node.policies.numa_label
    free = node_allocation.free_cpus()
    if policy is NumaPolicy.NONE:
        assert declined == (last.owner and last.requests["cpu"] > 1000 * free.bit_count())
        return
    left = node_allocation.available()
    for area in node.layout.nodes if node.layout and last.owner else ():
        cpus = (free & area.cpus).bit_count()
        paid = [count for count in range(cpus + 1) if _paid(node, count) <= left[area.id]["cpu"]]
        left[area.id]["cpu"] = 1000 * max(paid)
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        fits = any(
            all(amounts[name] >= requested for name, requested in last.requests.items())
            for amounts in left.values()
        )
        assert declined != fits
    if policy is NumaPolicy.BEST_EFFORT:
        room = {name: sum(each[name] for each in left.values()) for name in ("cpu", "memory")}
        assert declined == any(room[name] < requested for name, requested in last.requests.items())


def _paid(node: TopologyOptions, cpus: int) -> int:
    return math.ceil(1000 * cpus * node.cpu_ratio)


def _named(request: ResourceRequest, uid: str) -> ResourceRequest:
    return msgspec.structs.replace(request, uid=uid)
