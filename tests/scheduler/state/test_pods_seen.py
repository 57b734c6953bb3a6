"""The counts of pods by kind, their ConfigMap, and the placement that is built from them."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from agent.allocate.node_allocator.properties import AllocatorRules
from agent.allocate.placement.demand import MAX_KINDS
from agent.kube.errors import NotFoundError, StoreError
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.kube.transport import Transport
from agent.model.cpu.policies import PlacementPolicy
from agent.model.objects import ObjectError
from agent.model.pod_request import PodKind
from agent.scheduler.state import pods_seen, records
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import Feasible, PodRequirements, RequirementsCheck
from agent.scheduler.state.pods_seen import PlacementUpdates, PodsSeen
from agent.scheduler.state.records import AgentSelector, PodRecord
from tests.fixtures import fleet
from tests.fixtures.fleet import CARDS
from tests.kube.clock import Clock
from tests.scheduler import clusters
from tests.scheduler.objects import pod_request

HALF = {"cpu": "4", "memory": "8Gi", "koordinator.sh/gpu-core": "50"} | {
    "koordinator.sh/gpu-memory-ratio": "50"
}
KIND = PodKind(4000, 8 << 30, 1, 500)
_read = records.pods(AgentSelector(), kinds=True)


class Store:
    """An API server with one ConfigMap."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.unavailable = False
        self.writes = 0

    def get(self, path: str) -> bytes:
        if self.unavailable:
            raise StoreError("no answer")
        if self.body is None:
            raise NotFoundError("not found")
        return json.dumps(self.body).encode()

    def apply(self, path: str, wanted: dict[str, Any]) -> None:
        if self.unavailable:
            raise StoreError("no answer")
        self.body, self.writes = wanted, self.writes + 1


class World:
    def __init__(self, store: Store, policy: PlacementPolicy = PlacementPolicy.RESIDUAL) -> None:
        self.cluster = clusters.cluster({"a": CARDS, "b": CARDS})
        self.seen, self.clock = PodsSeen(), Clock()
        self.leads = self.synced = True
        self.clock.now += 1000
        self.updates = PlacementUpdates(
            cast("Transport", store),
            "topolet-system",
            self.cluster,
            self.seen,
            AllocatorRules(),
            policy,
            lambda: self.synced,
            lambda: self.leads,
            lambda: self.clock.now,
        )

    def report_pods(self, count: int, requests: dict[str, str] = HALF, first: int = 0) -> None:
        for number in range(first, first + count):
            self.seen.pods_changed([change(f"p{number}", requests)])

    @property
    def pods(self) -> dict[PodKind, int]:
        return self.seen.counts()[0]


def change(
    name: str, requests: dict[str, str], kind: ChangeKind = ChangeKind.MODIFIED, **spec: Any
) -> Change[PodRecord]:
    body = fleet.pod(name, requests, uid=name, **spec)
    return Change(kind, ObjectKey("default", name), _read(json.dumps(body).encode()))


def test_a_pod_counts_once() -> None:
    world = World(Store())
    world.report_pods(3)
    world.report_pods(3)
    assert world.pods == {KIND: 3}
    world.seen.pods_changed([change("p0", HALF, ChangeKind.DELETED)])
    assert world.pods == {KIND: 3}, "deleted pods count too"


def test_the_gpu_models_that_a_pod_accepts_belong_to_its_kind() -> None:
    seen, label = PodsSeen(), "node.koordinator.sh/gpu-model"
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": ["T4", "G2"]}]}
    required = {"nodeSelectorTerms": [term]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    seen.pods_changed(
        [
            change("a", HALF, nodeSelector={label: "T4"}),
            change("b", HALF, affinity=affinity),
            change("c", HALF, affinity={"nodeAffinity": {}}),
        ]
    )
    assert {each.models for each in seen.counts()[0]} == {("T4",), ("G2", "T4"), ()}


def test_the_placement_ranks_nodes_from_the_start() -> None:
    world = World(Store())
    check = requirements(world.cluster)
    assert feasible(check, "a").key == feasible(check, "b").key
    world.updates.step()
    assert feasible(check, "a").key != feasible(check, "b").key, (
        "nodes have a rank before a pod is reported"
    )
    rebuilds: list[int] = []
    world.seen.hurry = lambda: rebuilds.append(1)
    world.report_pods(1)
    assert rebuilds
    serial = world.cluster.changed_since(0).serial
    world.updates.step()
    assert world.cluster.changed_since(serial).names == {"a", "b"}
    assert len({feasible(check, name).key for name in "ab"}) == 2, "ranks exclude ties"
    serial = world.cluster.changed_since(0).serial
    rebuilds.clear()
    world.report_pods(48, first=1)
    assert not rebuilds
    world.updates.step()
    assert world.cluster.changed_since(serial).names == frozenset(), (
        "it is not rebuilt for each pod"
    )


def test_a_placement_is_rebuilt_after_a_change_of_nodes() -> None:
    world = World(Store())
    world.report_pods(1)
    world.updates.step()
    clusters.add_node(world.cluster, "c", CARDS)
    serial = world.cluster.changed_since(0).serial
    world.updates.step()
    assert world.cluster.changed_since(serial).names == frozenset()
    world.clock.now += pods_seen.CAPACITIES_SECONDS
    world.updates.step()
    assert world.cluster.changed_since(serial).names == {"a", "b", "c"}


def requirements(cluster: SchedulerCache) -> RequirementsCheck:
    return RequirementsCheck(cluster, PodRequirements(pod_request(HALF, "LS")))


def feasible(check: RequirementsCheck, node: str) -> Feasible:
    result = check.run(node, {})
    assert isinstance(result, Feasible)
    return result


def test_a_new_leader_counts_the_pods_of_the_config_map() -> None:
    store = Store()
    first = World(store)
    first.report_pods(5)
    first.updates.step()
    assert store.body is not None
    assert store.body["metadata"]["name"] == pods_seen.NAME
    second = World(store)
    second.report_pods(2)
    second.updates.step()
    assert second.pods == {KIND: 5}
    second.report_pods(1, first=100)
    assert second.pods == {KIND: 6}


def test_only_the_leader_writes_at_intervals() -> None:
    store = Store()
    world = World(store)
    world.leads = False
    world.report_pods(5)
    world.updates.step()
    assert store.writes == 0
    world.leads = True
    world.updates.step()
    world.report_pods(5, first=10)
    world.updates.step()
    assert store.writes == 1
    world.clock.now += pods_seen.WRITE_SECONDS
    world.updates.step()
    world.clock.now += pods_seen.WRITE_SECONDS
    world.updates.step()
    assert store.writes == 2, "nothing has changed since"


def test_the_config_map_is_read_before_it_is_written() -> None:
    store = Store()
    first = World(store)
    first.report_pods(5)
    first.updates.step()
    second = World(store)
    second.report_pods(1, first=50)
    store.unavailable = True
    serial = second.cluster.changed_since(0).serial
    second.updates.step()
    assert store.writes == 1
    assert second.cluster.changed_since(serial).names == {"a", "b"}, "the placement is built"
    store.unavailable = False
    second.updates.step()
    assert second.pods == {KIND: 5}
    assert store.body is not None
    assert pods_seen.decode(store.body["data"][pods_seen.KEY]) == {KIND: 5}


@pytest.mark.parametrize("data", [{"pods": "["}, {"pods": "[[1]]"}, {"pods": 1}, []])
def test_an_invalid_config_map_is_overwritten(data: object) -> None:
    store = Store()
    store.body = {"data": data}
    world = World(store)
    world.report_pods(1)
    world.updates.step()
    assert world.pods == {KIND: 1}
    assert store.writes == 1


def test_the_content_is_bounded_and_decoded_again() -> None:
    counts = {
        PodKind(cpu, 1 << 40, 8, 1000, tuple("m" * 63 + str(at) for at in range(3))): cpu + 1
        for cpu in range(2 * MAX_KINDS)
    }
    text = pods_seen.encode(counts)
    assert len(text) <= pods_seen.MAX_BYTES < 64 << 10
    decoded = pods_seen.decode(text)
    assert 200 < len(decoded) <= MAX_KINDS
    assert all(counts[kind] == pods for kind, pods in decoded.items())
    assert min(decoded.values()) == 2 * MAX_KINDS - len(decoded) + 1, (
        "the rarest kinds are left out"
    )


@pytest.mark.parametrize("odd", [PodKind(1, 1, 2000), PodKind(5 * 10**18, 1), PodKind(1, 5 << 60)])
def test_an_odd_pod_does_not_make_the_content_unreadable(odd: PodKind) -> None:
    assert pods_seen.decode(pods_seen.encode({odd: 1, KIND: 2})) == {KIND: 2}


def test_a_negative_amount_is_refused() -> None:
    with pytest.raises(ObjectError):
        pods_seen.decode("[[-1,0,0,0,[],1]]")


def test_nothing_happens_before_all_objects_are_known() -> None:
    store = Store()
    world = World(store)
    world.synced = False
    world.report_pods(1)
    world.updates.step()
    assert store.writes == 0
