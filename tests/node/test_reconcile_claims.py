"""Passes with pods that do not get the CPUs that their class or annotation promises."""

from __future__ import annotations

import msgspec
import pytest

from agent.model.pod.annotations import RESOURCE_STATUS
from agent.model.pod.apiobjects import ApiContainer, ApiPod, Phase
from agent.model.pod.qos import QOS_LABEL
from agent.node.change_log import CLAIM_NOT_HONORED, NO_CPUS_ALLOCATED, PodEvents
from tests.node.world import Recorded, World, claim


def bound(uid: str, qos: str, cpus: str, limit_milli: int, scheduler: str = "s") -> ApiPod:
    """A pod of this node that requests 2 CPUs."""
    annotations = claim(cpus)
    containers = (ApiContainer("main", {"cpu": 2000}, {"cpu": limit_milli}),)
    return ApiPod(
        uid,
        "ns",
        uid,
        "n",
        Phase.PENDING,
        {QOS_LABEL: qos},
        annotations,
        "burstable",
        1,
        containers=containers,
        scheduler=scheduler,
    )


@pytest.mark.parametrize(("limit_milli", "owns"), [(2000, True), (4000, False)])
def test_a_pod_whose_limit_differs_gets_the_pool_and_an_event(
    world: World, limit_milli: int, owns: bool
) -> None:
    world.cluster_objects.pods["a"] = bound("a", "LSR", "2-3", limit_milli)
    recorded = Recorded()
    agent = world.agent(pod_events=PodEvents(recorded))
    agent.reconcile()
    container = world.container(world.sandbox("a", "LSR", "2-3"))
    agent.reconcile()
    assert world.cpus(f"kubepods/burstable/poda/{container.id}") == ("2-3" if owns else "0-3")
    assert [each.uid for each in world.snapshot().owners] == ["a"] * owns
    if not owns:
        ((about, reason, note),) = recorded.events
        assert (about.uid, reason) == ("a", CLAIM_NOT_HONORED)
        assert "container main: requests.cpu is 2, limits.cpu is 4" in note


def test_a_pod_of_another_scheduler_shares_the_pool_and_gets_an_event(world: World) -> None:
    world.cluster_objects.pods["a"] = bound("a", "LSE", "", 2000, "default-scheduler")
    container = world.container(world.sandbox("a", "LSE"))
    recorded = Recorded()
    agent = world.agent(pod_events=PodEvents(recorded))
    for _ in range(2):
        agent.reconcile()
    assert world.cpus(f"kubepods/burstable/poda/{container.id}") == "0-3"
    ((about, reason, note),) = recorded.events
    assert (about.uid, reason) == ("a", NO_CPUS_ALLOCATED)
    assert "default-scheduler" in note


def test_without_an_api_server_log_and_metrics_name_the_pods(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The resources of the pod's sandbox show that its limit differs from its request."""
    sandbox = world.sandbox("a", "LSR", "2-3")
    unequal = "its sandbox: requests.cpu is 2, limits.cpu is 4"
    world.runtime.statuses[sandbox.id] = msgspec.structs.replace(
        world.runtime.statuses[sandbox.id], unequal=unequal
    )
    container = world.container(sandbox)
    world.container(world.sandbox("b", "LSE"))
    world.agent().reconcile()
    assert world.cpus(f"kubepods/burstable/poda/{container.id}") == "0-3"
    logged = "\n".join(caplog.messages)
    assert f"pod ns/a keeps the pool: annotation {RESOURCE_STATUS}: {unequal}" in logged
    assert "pod ns/b: no scheduler allocated CPUs to this LSE pod" in logged
    page = world.metrics.render()
    assert "topolet_pods_without_allocated_cpus 1" in page
    assert f'topolet_refused_claims{{annotation="{RESOURCE_STATUS}",namespace="ns",pod="a"' in page
