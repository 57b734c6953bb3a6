from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocation import NodeAllocation, TopologyOptions
from agent.allocate.node_allocator.cpus import Offer, Trials, offer
from agent.allocate.policies_in_force import in_force
from agent.allocate.refusal import Refusal
from agent.model.cpu import layout
from agent.model.cpu.cpuset import CpuSet
from agent.model.cpu.policies import (
    BindPolicy,
)
from agent.model.cpu.topology import Cpu
from agent.model.pod.annotations import (
    ResourceSpec,
)
from agent.model.pod.resource_request import ResourceRequest
from tests.allocate.nodes import owner
from tests.allocate.random_nodes import ls_pods, nodes, owners


@given(nodes(), st.lists(owners | ls_pods, max_size=5), owners | ls_pods)
def test_sufficient_numa_nodes_give_an_offer_and_insufficient_ones_do_not(
    node: TopologyOptions, before: list[ResourceRequest], last: ResourceRequest
) -> None:
    """Sufficient NUMA nodes are found without a search for CPUs, also on machines with cores of
    different sizes."""
    node_allocation = NodeAllocation(node)
    for number, request in enumerate(before):
        got = offer(node, node_allocation, msgspec.structs.replace(request, uid=f"p{number}"))
        if isinstance(got, Offer):
            node_allocation.add(got.allocation)
    policies = in_force(node.policies, node.profile, last)
    if isinstance(policies, Refusal):
        return
    trials = Trials(node, node_allocation, last, policies)
    ids = sorted(node.numa_allocatable)
    for some in ([*ids], *([each] for each in ids), ids[1:], ids[::2]):
        found = trials.on_nodes(some)
        assert trials.lacks(some) == (found if isinstance(found, Refusal) else None)


def test_cores_that_differ_may_not_add_up_to_the_sum() -> None:
    """Two free cores of two threads have room for three CPUs, but not as whole cores."""
    leads = {0: 0, 1: 0, 2: 0, 3: 3, 4: 3, 5: 5, 6: 5}
    made = layout.of(Cpu(cpu, core, None, None, 0, 0) for cpu, core in leads.items())
    node = TopologyOptions(made, {0: {"cpu": 7000}}, reserved=CpuSet((0,)))
    request = owner(3, spec=ResourceSpec(required=BindPolicy.FULL_PCPUS))
    policies = in_force(node.policies, node.profile, request)
    assert not isinstance(policies, Refusal)
    trials = Trials(node, NodeAllocation(node), request, policies)
    assert isinstance(trials.lacks([0]), Refusal)
    assert trials.lacks([0]) == trials.on_nodes([0])
