"""Events of pods that no node has room for."""

from __future__ import annotations

from agent.kube.events import Regarding
from agent.model.apiobjects import from_object
from agent.scheduler.explain.explainer import Explainer
from agent.scheduler.state.pod_info import pod_info
from agent.scheduler.unschedulable import events
from agent.scheduler.unschedulable.events import NO_NODE_HAS_ROOM, NoRoomEvents
from agent.scheduler.unschedulable.queue import UnschedulableQueue, queued_pod
from tests.fixtures.fleet import SMALL, Kind, owner
from tests.scheduler.explain.scenes import SCHEDULER, Scene


class Waiting:
    """A small node, and pods that were rejected."""

    def __init__(self) -> None:
        self.scene = Scene(a=SMALL)
        self.now, self.leads = 100.0, True
        self.recorded: list[tuple[Regarding, str, str]] = []
        self.queue = UnschedulableQueue()
        explainer = Explainer(self.scene.cluster, SCHEDULER)
        self.events = NoRoomEvents(
            self.queue, explainer, self, lambda: self.leads, clock=lambda: self.now
        )

    def record(self, regarding: Regarding, reason: str, note: str) -> None:
        self.recorded.append((regarding, reason, note))

    def reject(self, kind: Kind, name: str) -> None:
        info = pod_info(from_object(kind.pod(name)))
        self.queue.add(queued_pod(info, self.scene.cluster, self.now), ("a",))

    def step(self, passed_seconds: float = 0.0) -> list[tuple[Regarding, str, str]]:
        self.now += passed_seconds
        before = len(self.recorded)
        self.events.step()
        return self.recorded[before:]


def test_a_pod_that_waits_gets_an_event_that_names_what_to_change() -> None:
    it = Waiting()
    it.reject(owner(40, 4), "p")
    assert it.step() == []
    ((regarding, reason, note),) = it.step(events.LASTING_SECONDS)
    assert regarding == Regarding("default", "p", "uid-p")
    assert reason == NO_NODE_HAS_ROOM
    assert note.startswith("No room on 1 node. 1 node: cpu: ")
    change = "change Pod default/p: spec.containers[*].resources.requests, or Node a: its pods"
    assert change in note


def test_an_event_is_repeated_rarely_and_stays_the_same() -> None:
    it = Waiting()
    it.reject(owner(30, 4), "p")
    it.scene.run(owner(8, 4), "other", "a", "0-7")
    (first,) = it.step(events.LASTING_SECONDS)
    assert it.step(events.AGAIN_SECONDS - 1) == []
    it.scene.run(owner(4, 4), "third", "a", "8-11")
    assert it.step(1) == [first]


def test_a_pod_for_which_there_is_room_gets_none() -> None:
    it = Waiting()
    it.reject(owner(4, 4), "p")
    assert it.step(events.LASTING_SECONDS) == []


def test_only_the_leader_records() -> None:
    it = Waiting()
    it.reject(owner(40, 4), "p")
    it.leads = False
    assert it.step(events.LASTING_SECONDS) == []
    it.leads = True
    assert len(it.step()) == 1


def test_few_pods_are_explained_in_one_step() -> None:
    it = Waiting()
    for number in range(events.MAX_PER_STEP + 5):
        it.reject(owner(40, 4), f"p{number:02}")
    assert len(it.step(events.LASTING_SECONDS)) == events.MAX_PER_STEP
    assert len(it.step(1)) == 5


def test_explanations_take_a_small_part_of_the_time() -> None:
    """The clock of the test passes while a pod is explained."""
    it = Waiting()
    for number in range(3):
        it.reject(owner(40, 4), f"p{number}")

    class Slow(Explainer):
        def explain_waiting(self, info, *, until):  # type: ignore[no-untyped-def]
            it.now += 1.0
            return super().explain_waiting(info, until=until)

    it.events = NoRoomEvents(
        it.queue, Slow(it.scene.cluster, SCHEDULER), it, lambda: True, clock=lambda: it.now
    )
    assert len(it.step(events.LASTING_SECONDS)) == 1
    assert it.step(events.PAUSES - 1) == []
    assert len(it.step(1)) == 1
