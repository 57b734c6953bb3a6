"""Relay and plugin are two doors to the same hooks: what comes out of both is the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.hooks import cpuset, requests, rewrites
from agent.hooks.cpuset import Give
from agent.hooks.requests import CreateContainer, UpdateContainer
from agent.model.cpuset import CpuSet
from agent.model.doorbell import Asked
from agent.model.limits import Limits
from agent.model.wanted import Wanted
from agent.proto import cri_pb2, nri_pb2
from agent.runtime.nri import messages
from tests.plugin.world import pod
from tests.proxy.exchanges import sandbox

CPUS = st.sets(st.integers(0, 7), min_size=1).map(lambda cpus: str(CpuSet(cpus)))
QUOTA = st.one_of(st.just(-1), st.integers(1_000, 1_000_000))
MEMORY = st.integers(1, 1 << 40)
SHARES = st.integers(2, 262_144)
WANTED = st.builds(
    Wanted,
    st.none() | CPUS,
    st.booleans(),
    st.builds(
        Limits,
        st.none() | QUOTA,
        st.none() | SHARES,
        st.none() | MEMORY,
        st.none() | st.just(CpuSet([0])),
    ),
)
ASKED = st.builds(Asked, st.just("") | CPUS, st.just("") | st.just("1"), SHARES, QUOTA, MEMORY)


def in_cri(asked: Asked) -> cri_pb2.LinuxContainerResources:
    return cri_pb2.LinuxContainerResources(
        cpuset_cpus=asked.cpuset,
        cpuset_mems=asked.mems,
        cpu_shares=asked.shares,
        cpu_quota=asked.quota_microseconds,
        cpu_period=100_000,
        memory_limit_in_bytes=asked.memory_limit_bytes,
    )


def in_nri(asked: Asked) -> nri_pb2.LinuxResources:
    resources = nri_pb2.LinuxResources()
    resources.cpu.cpus, resources.cpu.mems = asked.cpuset, asked.mems
    resources.cpu.shares.value = asked.shares
    resources.cpu.quota.value = asked.quota_microseconds
    resources.cpu.period.value = 100_000
    resources.memory.limit.value = asked.memory_limit_bytes
    return resources


def merged(asked: Asked, changes: nri_pb2.LinuxResources) -> Asked:
    """As the runtime puts a plugin's values into its own: what is set wins."""
    resources = in_nri(asked)
    resources.MergeFrom(changes)
    return messages.asked(resources)


@given(WANTED, ASKED)
def test_both_doors_make_the_same_container(wanted: Wanted, asked: Asked) -> None:
    message = cri_pb2.CreateContainerRequest(sandbox_config=sandbox("p", "LS", "1"))
    message.config.metadata.name = "main"
    message.config.linux.resources.CopyFrom(in_cri(asked))
    raw = message.SerializeToString()
    by_relay = requests.create_container(raw)
    by_plugin = CreateContainer(messages.pod(pod("p", "LS", "1")), "main", asked)
    assert by_relay == by_plugin, "the hooks are asked the same"
    changes = cpuset.changes(by_plugin, Give(wanted))
    rewritten = rewrites.create_container(raw, changes) or raw
    adjustment = messages.adjustment(changes, ()) or nri_pb2.ContainerAdjustment()
    assert requests.create_container(rewritten).asked == changes.over(asked)
    assert merged(asked, adjustment.linux.resources) == changes.over(asked)


@given(WANTED, ASKED)
def test_both_doors_change_a_container_in_the_same_way(wanted: Wanted, asked: Asked) -> None:
    message = cri_pb2.UpdateContainerResourcesRequest(container_id="c", linux=in_cri(asked))
    raw = message.SerializeToString()
    by_plugin = UpdateContainer("c", messages.asked(in_nri(asked)))
    assert requests.update_container(raw) == by_plugin
    changes = cpuset.changes(by_plugin, Give(wanted))
    rewritten = rewrites.update_container(raw, changes) or raw
    update = messages.update("c", changes)
    assert update.container_id == "c"
    assert requests.update_container(rewritten).asked == changes.over(asked)
    assert merged(asked, update.linux.resources) == changes.over(asked)
