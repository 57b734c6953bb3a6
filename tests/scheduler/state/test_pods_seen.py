"""The pods that were seen, their ConfigMap, and the placement that follows from them."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from agent.allocate.node_allocator.properties import AllocatorRules
from agent.allocate.placement.demand import MAX_KINDS, PodKind
from agent.kube.errors import NotFoundError, StoreError
from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.kube.transport import Transport
from agent.model.cpu.policies import PlacementPolicy
from agent.model.objects import ObjectError
from agent.scheduler.state import pods_seen, records
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import Feasible, PodRequirements, RequirementsCheck
from agent.scheduler.state.pods_seen import PlacementUpdates, PodsSeen
from agent.scheduler.state.records import AgentSelector, PodRecord
from tests.fixtures import fleet
from tests.fixtures.fleet import CARDS
from tests.scheduler import clusters
from tests.scheduler.clock import Clock
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
        self.broken = False
        self.writes = 0

    def get(self, path: str) -> bytes:
        if self.broken:
            raise StoreError("no answer")
        if self.body is None:
            raise NotFoundError("not found")
        return json.dumps(self.body).encode()

    def apply(self, path: str, wanted: dict[str, Any]) -> None:
        if self.broken:
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

    def see(self, count: int, requests: dict[str, str] = HALF, first: int = 0) -> None:
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
    world.see(3)
    world.see(3)
    assert world.pods == {KIND: 3}
    world.seen.pods_changed([change("p0", HALF, ChangeKind.DELETED)])
    assert world.pods == {KIND: 3}, "it was seen"


def test_the_models_that_a_pod_admits_belong_to_its_kind() -> None:
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


def test_the_placement_decides_from_the_start() -> None:
    world = World(Store())
    check = requirements(world.cluster)
    assert found(check, "a").key == found(check, "b").key
    world.updates.step()
    assert found(check, "a").key != found(check, "b").key, "no pod was seen, there is a rank"
    hurried: list[int] = []
    world.seen.hurry = lambda: hurried.append(1)
    world.see(1)
    assert hurried
    serial = world.cluster.changed_since(0).serial
    world.updates.step()
    assert world.cluster.changed_since(serial).names == {"a", "b"}
    assert len({found(check, name).key for name in "ab"}) == 2, "there are no ties"
    serial = world.cluster.changed_since(0).serial
    hurried.clear()
    world.see(48, first=1)
    assert not hurried
    world.updates.step()
    assert world.cluster.changed_since(serial).names == frozenset(), "it is rebuilt rarely"


def test_a_placement_follows_the_nodes() -> None:
    world = World(Store())
    world.see(1)
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


def found(check: RequirementsCheck, node: str) -> Feasible:
    result = check.run(node, {})
    assert isinstance(result, Feasible)
    return result


def test_a_new_leader_has_the_pods_that_have_ended() -> None:
    kept = Store()
    first = World(kept)
    first.see(5)
    first.updates.step()
    assert kept.body is not None
    assert kept.body["metadata"]["name"] == pods_seen.NAME
    second = World(kept)
    second.see(2)
    second.updates.step()
    assert second.pods == {KIND: 5}
    second.see(1, first=100)
    assert second.pods == {KIND: 6}


def test_only_the_leader_writes_and_rarely() -> None:
    kept = Store()
    world = World(kept)
    world.leads = False
    world.see(5)
    world.updates.step()
    assert kept.writes == 0
    world.leads = True
    world.updates.step()
    world.see(5, first=10)
    world.updates.step()
    assert kept.writes == 1
    world.clock.now += pods_seen.WRITE_SECONDS
    world.updates.step()
    world.clock.now += pods_seen.WRITE_SECONDS
    world.updates.step()
    assert kept.writes == 2, "nothing has changed since"


def test_nothing_is_written_before_the_content_was_read() -> None:
    kept = Store()
    first = World(kept)
    first.see(5)
    first.updates.step()
    second = World(kept)
    second.see(1, first=50)
    kept.broken = True
    serial = second.cluster.changed_since(0).serial
    second.updates.step()
    assert kept.writes == 1
    assert second.cluster.changed_since(serial).names == {"a", "b"}, "the placement is built"
    kept.broken = False
    second.updates.step()
    assert second.pods == {KIND: 5}
    assert kept.body is not None
    assert pods_seen.decode(kept.body["data"][pods_seen.KEY]) == {KIND: 5}


@pytest.mark.parametrize("data", [{"pods": "["}, {"pods": "[[1]]"}, {"pods": 1}, []])
def test_a_content_that_cannot_be_read_counts_as_none(data: object) -> None:
    kept = Store()
    kept.body = {"data": data}
    world = World(kept)
    world.see(1)
    world.updates.step()
    assert world.pods == {KIND: 1}
    assert kept.writes == 1


def test_the_content_is_bounded_and_read_back() -> None:
    counts = {
        PodKind(cpu, 1 << 40, 8, 1000, tuple("m" * 63 + str(at) for at in range(3))): cpu + 1
        for cpu in range(2 * MAX_KINDS)
    }
    text = pods_seen.encode(counts)
    assert len(text) <= pods_seen.MAX_BYTES < 64 << 10
    back = pods_seen.decode(text)
    assert 200 < len(back) <= MAX_KINDS
    assert all(counts[kind] == pods for kind, pods in back.items())
    assert min(back.values()) == 2 * MAX_KINDS - len(back) + 1, "the rarest are left out"


def test_a_negative_amount_is_refused() -> None:
    with pytest.raises(ObjectError):
        pods_seen.decode("[[-1,0,0,0,[],1]]")


def test_nothing_happens_before_all_objects_are_known() -> None:
    kept = Store()
    world = World(kept)
    world.synced = False
    world.see(1)
    world.updates.step()
    assert kept.writes == 0
