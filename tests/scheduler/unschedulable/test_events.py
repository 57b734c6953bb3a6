"""Events of pods for which no node has room."""

from __future__ import annotations

import msgspec
import pytest

from agent.kube.events import Regarding
from agent.model.pod.apiobjects import from_object
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.state.pod_info import pod_info
from agent.scheduler.unschedulable import events
from agent.scheduler.unschedulable.events import NO_NODE_HAS_ROOM, NoRoomEvents
from agent.scheduler.unschedulable.queue import UnschedulableQueue, queued_pod
from tests.fixtures.fleet import NUMA_SPEC, SMALL, Kind, owner
from tests.scheduler.explain.scenes import SCHEDULER, Scene


class RejectedPods:
    """A small node, rejected pods, and the recorded events."""

    def __init__(self, *, evicts: bool = False) -> None:
        self.scene = Scene(a=SMALL)
        self.now, self.leads = 100.0, True
        self.recorded: list[tuple[Regarding, str, str]] = []
        self.queue = UnschedulableQueue()
        explainer = Explainer(self.scene.cluster, SCHEDULER)
        self.events = NoRoomEvents(
            self.queue,
            explainer,
            self,
            lambda: self.leads,
            evicts=evicts,
            clock=lambda: self.now,
        )

    def record(self, regarding: Regarding, reason: str, note: str) -> None:
        self.recorded.append((regarding, reason, note))

    def reject(self, kind: Kind, name: str) -> None:
        info = pod_info(from_object(kind.pod(name)))
        self.queue.add(queued_pod(info, self.scene.cluster, self.now), ("a",))

    def step(self, seconds: float = 0.0) -> list[tuple[Regarding, str, str]]:
        self.now += seconds
        before = len(self.recorded)
        self.events.step()
        return self.recorded[before:]


def test_a_rejected_pod_gets_an_event_with_the_possible_changes() -> None:
    pods = RejectedPods()
    pods.reject(owner(40, 4), "p")
    assert pods.step() == []
    ((regarding, reason, note),) = pods.step(events.LASTING_SECONDS)
    assert regarding == Regarding("default", "p", "uid-p")
    assert reason == NO_NODE_HAS_ROOM
    assert note.startswith("No room on 1 node. 1 node: cpu: ")
    change = "change Pod default/p: spec.containers[*].resources.requests, or Node a: its pods"
    assert change in note


def test_an_event_is_repeated_unchanged_at_intervals() -> None:
    pods = RejectedPods()
    pods.reject(owner(30, 4), "p")
    pods.scene.run(owner(8, 4), "other", "a", "0-7")
    (first,) = pods.step(events.LASTING_SECONDS)
    assert pods.step(events.AGAIN_SECONDS - 1) == []
    pods.scene.run(owner(4, 4), "third", "a", "8-11")
    assert pods.step(1) == [first]


def test_a_pod_for_which_a_node_has_room_gets_no_event() -> None:
    pods = RejectedPods()
    pods.reject(owner(4, 4), "p")
    assert pods.step(events.LASTING_SECONDS) == []


def test_only_the_leader_records_events() -> None:
    pods = RejectedPods()
    pods.reject(owner(40, 4), "p")
    pods.leads = False
    assert pods.step(events.LASTING_SECONDS) == []
    pods.leads = True
    assert len(pods.step()) == 1


def test_the_pods_explained_in_one_step_are_limited() -> None:
    pods = RejectedPods()
    for number in range(events.MAX_PER_STEP + 5):
        pods.reject(owner(40, 4), f"p{number:02}")
    assert len(pods.step(events.LASTING_SECONDS)) == events.MAX_PER_STEP
    assert len(pods.step(1)) == 5


def test_steps_pause_longer_than_explanations_take() -> None:
    """Each explanation takes a second of the test's clock."""
    pods = RejectedPods()
    for number in range(3):
        pods.reject(owner(40, 4), f"p{number}")

    class Slow(Explainer):
        def explain_waiting(self, info, *, until):  # type: ignore[no-untyped-def]
            pods.now += 1.0
            return super().explain_waiting(info, until=until)

    pods.events = NoRoomEvents(
        pods.queue, Slow(pods.scene.cluster, SCHEDULER), pods, lambda: True, clock=lambda: pods.now
    )
    assert len(pods.step(events.LASTING_SECONDS)) == 1
    assert pods.step(events.PAUSES - 1) == []
    assert len(pods.step(1)) == 1


@pytest.mark.parametrize("evicts", [False, True])
def test_the_event_names_the_option_if_evictions_would_make_room(evicts: bool) -> None:
    """Six CPUs are free on each NUMA node, and the pod requires twelve of one."""
    pods = RejectedPods(evicts=evicts)
    low = msgspec.structs.replace(owner(10, 4), spec={"priority": 9000})
    for numa_node in (0, 1):
        pods.scene.run(low, f"low-{numa_node}", "a", pods.scene.cpus("a", numa_node, 10))
    pods.reject(_on_one_numa_node(owner(12, 4)), "p")
    ((_, _, note),) = pods.step(events.LASTING_SECONDS)
    assert note.startswith(events.EVICT_HINT) is not evicts
    assert "No room on 1 node. " in note


def _on_one_numa_node(kind: Kind) -> Kind:
    notes = {NUMA_SPEC: '{"numaTopologyPolicy":"SingleNUMANode"}'}
    return msgspec.structs.replace(kind, annotations={**kind.annotations, **notes})
