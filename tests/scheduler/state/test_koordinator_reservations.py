"""The resources that Koordinator's Reservations hold in addition to the pods that use them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.allocate.node_allocator.answer import NodeOffer
from agent.kube.objects import Change
from agent.model.objects import ObjectError
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESERVATION_ALLOCATED
from agent.scheduler.preemption.victim_selection import NodeSnapshots
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.koordinator_reservations import reservation
from tests.scheduler import objects
from tests.scheduler.state.reservations import CORE, DELETED, allocation, body, event, read


def owner(
    name: str, reservation: str, annotations: Mapping[str, str], node: str = "n"
) -> dict[str, Any]:
    reference = {
        RESERVATION_ALLOCATED: json.dumps({"name": reservation, "uid": f"uid-{reservation}"})
    }
    return objects.pod(name, node, annotations={**annotations, **reference}, phase="Running")


def cluster() -> SchedulerCache:
    cache = SchedulerCache(agents=False)
    cache.nodes_changed([objects.node_change(objects.node("n"))])
    cache.topologies_changed([objects.topology_change(objects.topology("n"))])
    cache.devices_changed([objects.devices_change(objects.devices("n", 4))])
    return cache


def held(cache: SchedulerCache, node: str = "n") -> dict[str, tuple[str, dict[int, int]]]:
    """By uid, the CPUs and the percents of cards by minor."""
    state = cache.node(node)
    assert state is not None
    return {
        uid: (
            str(each.allocation.cpus),
            {minor: amounts[CORE] for (_, minor), amounts in sorted(each.devices.items())},
        )
        for uid, each in state.allocator.assigned_pods.items()
    }


@pytest.mark.parametrize("phase", ["Available", "Waiting"])
def test_an_active_reservation_holds_the_allocation_of_its_annotations(phase: str) -> None:
    cache = cluster()
    cache.koordinator_reservations_changed(
        [event(body("r", allocation("0-3", {0: 100, 1: 50}), phase=phase))]
    )
    assert held(cache) == {"uid-r": ("0-3", {0: 100, 1: 50})}


@pytest.mark.parametrize(("phase", "node"), [("Pending", ""), ("Available", "")])
def test_a_reservation_without_a_node_holds_nothing(phase: str, node: str) -> None:
    assert read(body("r", allocation("0-3"), phase=phase, node=node)).held is None


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed", "", "Odd"])
def test_a_reservation_that_has_ended_holds_nothing(phase: str) -> None:
    cache = cluster()
    cache.koordinator_reservations_changed([event(body("r", allocation("0-3")))])
    cache.koordinator_reservations_changed([event(body("r", allocation("0-3"), phase=phase))])
    assert held(cache) == {}


def test_a_reservation_is_replaced_by_another_of_the_same_name() -> None:
    cache = cluster()
    cache.koordinator_reservations_changed([event(body("r", allocation("0-3")))])
    cache.koordinator_reservations_changed([event(body("r", allocation("4-5"), uid="other"))])
    assert held(cache) == {"other": ("4-5", {})}
    cache.koordinator_reservations_changed(
        [event(body("r", allocation("4-5"), uid="other"), DELETED)]
    )
    assert held(cache) == {}


def test_pods_hold_their_parts_and_the_reservation_holds_the_rest() -> None:
    cache = cluster()
    cache.koordinator_reservations_changed([event(body("r", allocation("0-3", {0: 100, 1: 100})))])
    first = owner("p", "r", allocation("0-1", {0: 60}))
    cache.pods_changed([objects.pod_change(first)])
    assert held(cache) == {
        "uid-p": ("0-1", {0: 60}),
        "uid-r": ("2-3", {0: 40, 1: 100}),
    }
    rest = owner("q", "r", allocation("2-3", {0: 40, 1: 100}))
    cache.pods_changed([objects.pod_change(rest)])
    assert held(cache).keys() == {"uid-p", "uid-q"}
    cache.pods_changed([objects.pod_change(first, DELETED)])
    assert held(cache)["uid-r"] == ("0-1", {0: 60})


def test_a_pod_cannot_release_resources_that_it_does_not_hold() -> None:
    """Any user may write the annotation. The Reservation releases only what the pod holds."""
    cache = cluster()
    cache.koordinator_reservations_changed([event(body("r", allocation("0-3", {0: 100})))])
    cache.pods_changed([objects.pod_change(owner("p", "r", {}))])
    cache.pods_changed([objects.pod_change(owner("elsewhere", "r", allocation("0-3"), node="m"))])
    assert held(cache)["uid-r"] == ("0-3", {0: 100})


def test_annotations_of_the_reservation_replace_those_of_the_template() -> None:
    spec = {
        "scheduling.koordinator.sh/resource-spec": '{"preferredCPUExclusivePolicy":"PCPULevel"}'
    }
    found = read(body("r", allocation("0-1"), template={**allocation("4-7"), **spec})).held
    assert found is not None
    assert str(found.allocation.cpus) == "0-1"
    assert found.allocation.exclusive == "PCPULevel"


def test_an_invalid_annotation_is_logged_and_the_others_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = read(body("r", {**allocation("0-1"), DEVICE_ALLOCATED: "["})).held
    assert found is not None
    assert str(found.allocation.cpus) == "0-1"
    assert f"Reservation r on node n: annotation {DEVICE_ALLOCATED}" in caplog.text


def test_an_invalid_reservation_is_refused() -> None:
    with pytest.raises(ObjectError, match=r"Reservation r: status\.phase"):
        reservation(b'{"metadata": {"name": "r"}, "status": {"phase": 1}}')


def test_no_other_pod_gets_the_cpus_or_devices_of_a_reservation() -> None:
    cache = cluster()
    cache.koordinator_reservations_changed(
        [event(body("r", allocation("0-5", {0: 100, 1: 100, 2: 100})))]
    )
    state = cache.node("n")
    assert state is not None
    offers = {
        name: state.allocator.offer(objects.pod_request(requests, qos="LSR", name=name))
        for name, requests in {
            "fits": {"cpu": "2", "nvidia.com/gpu": "1"},
            "cpus": {"cpu": "4"},
            "cards": {"cpu": "2", "nvidia.com/gpu": "2"},
        }.items()
    }
    assert {name: isinstance(each, NodeOffer) for name, each in offers.items()} == {
        "fits": True,
        "cpus": False,
        "cards": False,
    }


def test_a_reservation_is_not_a_pod_of_the_node() -> None:
    """It does not count against the maximum of pods, and cannot be evicted."""
    cache = cluster()
    node = objects.node("n")
    node["status"]["allocatable"]["pods"] = "1"
    cache.nodes_changed([objects.node_change(node)])
    cache.pods_changed([objects.pod_change(objects.pod("p", "n", phase="Running"))])
    cache.koordinator_reservations_changed([event(body("r", allocation("0-3")))])
    state = cache.node("n")
    assert state is not None
    assert state.overcommitted(()) == ""
    snapshot = NodeSnapshots(cache).take("n", objects.pod_request({"cpu": "1"}))
    assert snapshot is not None
    assert snapshot.resources.requested.keys() == {"uid-p"}
    assert [each.uid for each in snapshot.potential_victims] == ["uid-p"]


EVENTS = (
    ("koordinator_reservations", event(body("r", allocation("0-3", {0: 100, 1: 100})))),
    ("koordinator_reservations", event(body("s", allocation("4-5")))),
    ("pods", objects.pod_change(owner("p", "r", allocation("0-1", {0: 60})))),
    ("pods", objects.pod_change(owner("q", "r", allocation("2", {1: 100})))),
    ("pods", objects.pod_change(owner("t", "s", allocation("4-5")))),
)


@given(order=st.permutations(EVENTS), deleted=st.sampled_from((None, "p", "q", "t")))
def test_the_state_does_not_depend_on_the_order(order: Any, deleted: str | None) -> None:
    """After a start, watches report pods and Reservations in any order."""
    cache = cluster()
    for kind, change in order:
        getattr(cache, f"{kind}_changed")([change])
    expected = {
        "uid-p": ("0-1", {0: 60}),
        "uid-q": ("2", {1: 100}),
        "uid-r": ("3", {0: 40}),
        "uid-t": ("4-5", {}),
    }
    assert held(cache) == expected
    if deleted is not None:
        (change,) = (each for _, each in EVENTS if each.key.name == deleted)
        cache.pods_changed([Change(DELETED, change.key, change.value)])
        del expected[f"uid-{deleted}"]
        expected["uid-r"] = {
            "p": ("0-1,3", {0: 100}),
            "q": ("2-3", {0: 40, 1: 100}),
            "t": ("3", {0: 40}),
        }[deleted]
        if deleted == "t":
            expected["uid-s"] = ("4-5", {})
        assert held(cache) == expected


def test_a_reservation_that_ends_after_its_node_keeps_nothing_of_the_node() -> None:
    cache = cluster()
    cache.koordinator_reservations_changed([event(body("r", {}))])
    node = objects.node("n")
    cache.nodes_changed([objects.node_change(node, DELETED)])
    cache.topologies_changed([objects.topology_change(objects.topology("n"), DELETED)])
    cache.devices_changed([objects.devices_change(objects.devices("n"), DELETED)])
    cache.koordinator_reservations_changed([event(body("r", {}, phase="Failed"))])
    assert not cache._nodes
