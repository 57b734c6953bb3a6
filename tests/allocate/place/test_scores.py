"""A place's score: two NUMA nodes of 8 CPUs and 16 GiB, settings that look at CPU alone."""

from __future__ import annotations

import msgspec
import pytest

from agent.allocate.place.answer import Granted
from agent.allocate.place.facts import PlaceFacts, PlaceRules
from agent.allocate.place.holding import holding_of
from agent.allocate.place.place import Place
from agent.allocate.place.wish import Wish, wish_of
from agent.model.policies import NumaPolicy
from agent.model.schedulerargs import decode
from tests.allocate.place.builders import facts, pod

GIB = 1 << 30
MOST_CPU = decode(
    {
        "kind": "CPUOrchestrationPluginArgs",
        "scoringStrategy": {"measures": ["Resources"], "resources": [{"name": "cpu"}]},
    }
)


def node(policy: NumaPolicy | None = None) -> PlaceFacts:
    return msgspec.structs.replace(
        facts(policy=policy),
        rules=PlaceRules(scoring=MOST_CPU),
        allocatable={"cpu": 16_000, "memory": 32 * GIB},
    )


def ls(cpu: int, uid: str = "a") -> Wish:
    return wish_of(pod(uid, {"cpu": cpu}, "LS"))


def score(place: Place, wish: Wish) -> int:
    got = place.offer(wish)
    assert isinstance(got, Granted)
    return got.score


@pytest.fixture
def place() -> Place:
    """With a pod of 4 CPUs that nobody decided about."""
    it = Place(node())
    it.record(holding_of(pod("plain", {"cpu": 4})))
    return it


def test_every_pod_of_the_node_counts(place: Place) -> None:
    assert score(place, ls(4)) == 50


def test_what_a_pod_holds_itself_does_not_count_for_it(place: Place) -> None:
    granted = place.offer(ls(4))
    assert isinstance(granted, Granted)
    place.commit(granted)
    assert score(place, ls(4)) == 50
    assert score(place, ls(4, "b")) == 75


def test_a_pod_that_went_counts_no_more(place: Place) -> None:
    place.record(holding_of(pod("other", {"cpu": 8})))
    assert score(place, ls(4)) == 100
    assert score(place.without({"other"}), ls(4)) == 50
    place.record(holding_of(pod("other", {"cpu": 4})))
    assert score(place, ls(4)) == 75
    place.release("other")
    assert score(place, ls(4)) == 50


def test_a_pod_held_to_a_numa_node_is_scored_there() -> None:
    place = Place(node(NumaPolicy.SINGLE_NUMA_NODE))
    assert score(place, ls(4)) == 50


def test_the_node_is_scored_by_the_facts_where_nothing_is_set() -> None:
    assert score(Place(facts(policy=NumaPolicy.SINGLE_NUMA_NODE)), ls(4)) == (50 + 100) // 2
