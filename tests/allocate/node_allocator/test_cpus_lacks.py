"""A predicted refusal of NUMA nodes equals the result of the trial."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocation import NodeAllocation, TopologyOptions
from agent.allocate.node_allocator.cpus import Trials
from agent.allocate.policies_in_force import PROFILES, InForce, NodePolicies, in_force
from agent.allocate.refusal import Refusal
from agent.model.cpu import layout
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import BindPolicy, ExclusivePolicy, NumaPolicy
from agent.model.cpu.topology import Cpu
from agent.model.pod.annotations import ResourceSpec
from agent.model.pod.qos import QoS
from agent.model.pod.resource_request import ResourceRequest
from conformance import machines
from tests.allocate.nodes import GIB, claim, owner

MACHINE = machines.cpus((1, 3, 4, 2), "interleaved")
ids = st.integers(0, 23)
specs = st.builds(
    ResourceSpec,
    st.sampled_from([BindPolicy.DEFAULT, BindPolicy.CONSTRAINED_BURST]),
    st.none() | st.sampled_from([BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS]),
    st.sampled_from(ExclusivePolicy),
)
requests = st.builds(
    ResourceRequest,
    st.just("a"),
    st.just("ns/a"),
    st.sampled_from([QoS.LS, QoS.LSR]),
    st.booleans(),
    st.fixed_dictionaries(
        {"cpu": st.integers(1, 10).map(lambda cpus: cpus * 1000)},
        optional={"memory": st.integers(1, 48).map(lambda each: each * GIB), "disk": st.just(1)},
    ),
    st.none() | st.integers(1, 20).map(lambda cpus: cpus * 1000),
    specs,
)


@st.composite
def nodes(draw: st.DrawFn) -> TopologyOptions:
    """Some have cores of one thread, some have a zone that reports CPU but no CPUs, some are
    amplified. Up to ten CPUs are reserved."""
    offline = draw(st.frozensets(ids, max_size=3)) if draw(st.booleans()) else frozenset()
    missing = frozenset(range(16, 24)) if draw(st.booleans()) else frozenset()
    cpus: list[Cpu] = [cpu for cpu in MACHINE if cpu.id not in offline | missing]
    zones = {node: {"cpu": 8000, "memory": 16 * GIB} for node in range(3)}
    profile = draw(st.sampled_from(list(PROFILES.values())))
    return TopologyOptions(
        layout.of(cpus),
        zones,
        never_owned=CpuSet(draw(st.frozensets(ids, max_size=10))),
        policies=NodePolicies(numa_label=NumaPolicy.RESTRICTED),
        profile=profile,
        cpu_ratio=draw(st.sampled_from([1.0, 1.5])),
    )


@given(nodes(), requests, st.lists(st.tuples(ids, ids), max_size=4), st.integers(0, 8000))
def test_a_refusal_equals_the_trials_result(
    options: TopologyOptions,
    request: ResourceRequest,
    owned: list[tuple[int, int]],
    shared_milli: int,
) -> None:
    node_allocation = NodeAllocation(options)
    for number, cpus in enumerate(owned):
        node_allocation.add(claim(f"p{number}", ",".join(map(str, cpus))))
    node_allocation.add(claim("s", amounts={1: {"cpu": shared_milli, "memory": GIB}}))
    policies = in_force(options.policies, options.profile, request)
    assert isinstance(policies, InForce)
    trials = Trials(options, node_allocation, request, policies)
    for mask in chain.from_iterable(combinations(range(3), size) for size in (1, 2, 3)):
        tried = trials.on_nodes(mask)
        assert trials.lacks(mask) == (tried if isinstance(tried, Refusal) else None)


def test_cores_that_differ_may_not_add_up_to_the_sum() -> None:
    """Two free cores of two threads have room for three CPUs, but not as whole cores."""
    leads = {0: 0, 1: 0, 2: 0, 3: 3, 4: 3, 5: 5, 6: 5}
    made = layout.of(Cpu(cpu, core, None, None, 0, 0) for cpu, core in leads.items())
    node = TopologyOptions(made, {0: {"cpu": 7000}}, never_owned=CpuSet((0,)))
    request = owner(3, spec=ResourceSpec(required=BindPolicy.FULL_PCPUS))
    policies = in_force(node.policies, node.profile, request)
    assert not isinstance(policies, Refusal)
    trials = Trials(node, NodeAllocation(node), request, policies)
    assert isinstance(trials.lacks([0]), Refusal)
    assert trials.lacks([0]) == trials.on_nodes([0])
