"""Eviction plans with a real API server and without a kube-scheduler."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import msgspec
import pytest

from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.pod.apiobjects import from_object
from agent.model.pod_request import request_of
from agent.scheduler.preemption.disruption_budgets import Budgets
from agent.scheduler.preemption.evictor import (
    BIND_SECONDS,
    EVICTION_SECONDS,
    RETRY_INTERVAL_SECONDS,
    Evictor,
)
from agent.scheduler.preemption.victim_selection import NodeSnapshots
from agent.scheduler.state import records
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import PodRequirements, RequirementsCheck
from agent.scheduler.state.records import AgentSelector
from agent.scheduler.unschedulable.queue import QueuedPod, UnschedulableQueue
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects
from tests.scheduler import objects as cluster_objects

QOS = {"koordinator.sh/qosClass": "LSR"}
CPUS = {"a": "0-3", "b": "4-7"}
"""All CPUs of a node: one pod on each NUMA node."""

_numbers = itertools.count()
_read = records.pods(AgentSelector())


class World:
    """One node that two pods fill, and a pod with a higher priority that waits for it."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self.api = api
        self.name = name
        self.now = 100.0
        self.leading = True
        self.queue = UnschedulableQueue()
        self.budgets = Budgets()
        self.cluster = SchedulerCache(agents=False)
        self.evictor = Evictor(
            api.admin,
            NodeSnapshots(self.cluster),
            self.queue,
            self.budgets,
            lambda: self.leading,
            clock=lambda: self.now,
        )
        self.nodes = [name, f"{name}-2"]
        objects.namespace(api, name)
        for node in self.nodes:
            objects.ready_node(api, node, {"cpu": "8", "memory": "8Gi"})
            self.cluster.nodes_changed([cluster_objects.node_change(cluster_objects.node(node))])
            self.cluster.topologies_changed(
                [cluster_objects.topology_change(cluster_objects.topology(node))]
            )
        for pod, cpus in CPUS.items():
            self.add_pod(pod, cpus)
        body = objects.create(
            api, objects.pod_manifest(name, "high", {"cpu": "4"}, scheduler="none", labels=QOS)
        )
        body["spec"]["priority"] = 10
        high = from_object(body)
        requirements = PodRequirements(request_of(high))
        self.queued = QueuedPod(
            high.uid,
            name,
            "high",
            RequirementsCheck(self.cluster, requirements),
            0,
            self.now,
            10,
            None,
            (name,),
            requirements,
        )
        self.queue.add(self.queued)
        self.now += 1.0

    def add_pod(self, pod: str, cpus: str, node: str = "", *, reported: bool = True) -> None:
        note = {"scheduling.koordinator.sh/resource-status": f'{{"cpuset":"{cpus}"}}'}
        wanted = objects.pod_manifest(
            self.name, pod, {"cpu": "4"}, scheduler="", labels={**QOS, "app": pod}, annotations=note
        )
        wanted["spec"]["nodeName"] = node or self.name
        objects.create(self.api, wanted)
        path = f"/api/v1/namespaces/{self.name}/pods/{pod}/status"
        ready = {"type": "Ready", "status": "True"}
        self.api.admin.merge(path, {"status": {"phase": "Running", "conditions": [ready]}})
        if reported:
            self.report(pod)

    def report(self, pod: str, kind: ChangeKind = ChangeKind.MODIFIED) -> None:
        """Reports it as a watch does."""
        raw = self.api.admin.get(f"/api/v1/namespaces/{self.name}/pods/{pod}")
        self.cluster.pods_changed([Change(kind, ObjectKey(self.name, pod), _read(raw))])

    def end(self, pod: str) -> None:
        """Ends the pod as the kubelet does, and reports it as a watch does."""
        self.report(pod, ChangeKind.DELETED)
        objects.force_delete(self.api, self.name, pod)

    def terminating(self) -> set[str]:
        pods = objects.pods(self.api, self.name)
        return {each for each, pod in pods.items() if "deletionTimestamp" in pod["metadata"]}


@pytest.fixture
def world(apiserver: ApiServer) -> Iterator[World]:
    it = World(apiserver, f"evictor-{next(_numbers)}")
    yield it
    for pod in objects.pods(apiserver, it.name):
        objects.force_delete(apiserver, it.name, pod)
    for node in it.nodes:
        apiserver.admin.delete(f"/api/v1/nodes/{node}")


def test_a_pod_has_one_plan_until_it_is_bound(world: World) -> None:
    """Also if another node would be suitable."""
    for pod, cpus in CPUS.items():
        world.add_pod(f"other-{pod}", cpus, world.nodes[1])
    both = msgspec.structs.replace(world.queued, candidates=tuple(world.nodes))
    world.queue.add(msgspec.structs.replace(both, rejected_at=0.0))
    world.evictor.step()
    (plan,) = world.evictor.plans
    assert world.terminating() == {each.name for each in plan.victims}
    assert len(plan.victims) == world.evictor.evicted == 1
    world.now += 10 * RETRY_INTERVAL_SECONDS
    world.evictor.step()
    assert world.evictor.plans == (plan,)
    assert len(world.terminating()) == 1
    assert world.queue.nominated_for_others("another", 10, world.now) == {plan.node}
    assert world.queue.nominated_for_others("another", 11, world.now) == set()
    assert world.queue.nominated_for_others(world.queued.uid, 10, world.now) == set()
    world.queue.remove(world.queued.uid)
    assert world.queue.nominated_for_others("another", 10, world.now) == set()
    world.evictor.step()
    assert world.evictor.plans == ()


def test_a_plan_ends_soon_after_its_victims(world: World) -> None:
    """The pod was not bound, for another reason."""
    world.evictor.step()
    (victim,) = world.terminating()
    world.end(victim)
    world.evictor.step()
    world.now += BIND_SECONDS
    world.evictor.step()
    assert world.evictor.plans == ()
    assert world.terminating() == set()


def test_a_plan_ends_if_its_victims_do_not_end_in_time(world: World) -> None:
    world.evictor.step()
    (victim,) = world.terminating()
    world.report(victim)
    world.now += EVICTION_SECONDS
    world.evictor.step()
    assert world.evictor.plans == ()


def test_a_plan_is_dropped_if_the_api_server_refuses_an_eviction(world: World) -> None:
    """A budget that was not reported yet refuses the evictions before any pod is evicted."""
    for pod in CPUS:
        world.api.create(
            f"/apis/policy/v1/namespaces/{world.name}/poddisruptionbudgets",
            {
                "metadata": {"name": pod},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": pod}}},
            },
        )
    world.evictor.step()
    assert world.evictor.plans == ()
    assert world.terminating() == set()


@pytest.mark.parametrize(
    "change",
    [
        lambda world: objects.force_delete(world.api, world.name, "high"),
        lambda world: world.queue.remove(world.queued.uid),
        lambda world: world.evictor.pause(world.queued.uid),
        lambda world: setattr(world, "now", world.now - 0.5),
        lambda world: world.queue.add(msgspec.structs.replace(world.queued, nominated="another")),
        lambda world: (
            world.cluster.pods_changed(
                [
                    cluster_objects.pod_change(
                        cluster_objects.pod(
                            "a", world.name, phase="Succeeded", namespace=world.name
                        )
                    )
                ]
            )
            or world.report("a", ChangeKind.DELETED)
        ),
    ],
    ids=[
        "the pod is deleted",
        "the pod is offered a node",
        "kube-scheduler preempts",
        "too early",
        "a node is nominated",
        "a node has room",
    ],
)
def test_no_pod_is_evicted_if_the_eviction_is_not_needed(
    world: World, change: Callable[[World], object]
) -> None:
    change(world)
    world.evictor.step()
    assert world.evictor.plans == ()
    assert world.terminating() == set()


def test_a_victim_with_another_uid_is_not_evicted(world: World) -> None:
    """Both were created again with the same names, which the watch has not reported yet."""
    for pod, cpus in CPUS.items():
        objects.force_delete(world.api, world.name, pod)
        world.add_pod(pod, cpus, reported=False)
    world.evictor.step()
    assert world.evictor.plans == ()
    assert world.terminating() == set()


def test_no_pod_is_evicted_while_a_terminating_pod_frees_the_room(world: World) -> None:
    world.api.admin.delete(f"/api/v1/namespaces/{world.name}/pods/b")
    world.report("b")
    world.evictor.step()
    assert world.evictor.plans == ()
    assert world.terminating() == {"b"}


def test_a_replica_that_is_not_the_leader_evicts_no_pod(world: World) -> None:
    world.leading = False
    world.evictor.step()
    assert world.terminating() == set()
    world.leading = True
    world.evictor.step()
    assert world.evictor.plans
    world.leading = False
    world.evictor.step()
    assert world.evictor.plans == ()


def test_a_leader_that_loses_the_lease_during_an_api_call_evicts_no_pod(world: World) -> None:
    """Another replica may have chosen other victims for the same pod by then."""
    calls = itertools.count()
    slow = Evictor(
        world.api.admin,
        NodeSnapshots(world.cluster),
        world.queue,
        world.budgets,
        lambda: next(calls) == 0,
        clock=lambda: world.now,
    )
    slow.step()
    assert slow.plans == ()
    assert world.terminating() == set()
