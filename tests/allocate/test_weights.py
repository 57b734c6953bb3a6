"""The weights of containers with CPUs of claims, and of their pods."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.weights import least_shares, pod_shares
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import MAX_SHARES, LinuxResources
from agent.model.pod.pods import Container, ContainerState
from agent.model.pod.qos import QoS
from agent.model.snapshot import PodWanted, Wanted

CREATED = st.sampled_from([ContainerState.CREATED, ContainerState.RUNNING])
SHARES = st.integers(0, 8192)


@pytest.mark.parametrize(("cpus", "shares"), [(0, 0), (1, 1024), (8, 8192), (300, MAX_SHARES)])
def test_the_shares_of_a_claim(cpus: int, shares: int) -> None:
    assert least_shares(CpuSet(range(cpus))) == shares


@given(st.lists(st.tuples(SHARES, SHARES, st.booleans(), CREATED), min_size=1, max_size=4))
def test_a_pod_has_at_least_what_its_containers_have(
    drawn: list[tuple[int, int, bool, ContainerState]],
) -> None:
    """And a container what it requests. Without claims nothing is decided."""
    containers, named, weights = [], {}, []
    for index, (requested, least, is_batch, state) in enumerate(drawn):
        name = str(index)
        containers.append(Container(name, name, state, shares=2 if is_batch else requested))
        resources = LinuxResources("0", shares=requested if is_batch else None)
        named[name] = Wanted(resources, least_shares=least)
        request = LinuxResources(shares=containers[-1].shares)
        of_container = named[name].over(request)
        weights.append(of_container.over(request).shares or 0)
        assert weights[-1] >= max(least, requested)
        assert least or of_container == resources
    of_pod = pod_shares(containers, PodWanted("ns/p", QoS.LS, Wanted(), named))
    if any(least for _, least, _, _ in drawn):
        assert of_pod >= sum(weights)
    else:
        assert of_pod == 0
