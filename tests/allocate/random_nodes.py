"""Hypothesis strategies: nodes and requests of pods."""

from __future__ import annotations

from hypothesis import strategies as st

from agent.allocate.node_allocation import TopologyOptions
from agent.allocate.policies_in_force import NodePolicies, Profile
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
        reserved=CpuSet(draw(st.lists(st.sampled_from(ids), max_size=4))),
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
