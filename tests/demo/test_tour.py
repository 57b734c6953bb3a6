"""The tour's keys, its story and its picture, without a runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from agent.model import audit
from agent.model.audit import AuditEvent, Record, WriteReason
from agent.model.snapshot import Snapshot
from demo import tour
from demo.tour import Tour
from tests.builders import machine
from tests.demo.decided import SNAPSHOT
from tests.waiting import eventually


class FakeTour(Tour):
    """`did`: what the keys began. `comes`: whether pods are there after they were started."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []
        self.comes = True
        self.trail: list[Record] = []
        self.restarted: list[str] = []

    def come(self, qos: str) -> bool:
        self.did.append(f"{qos} comes")
        return self.comes

    def leave(self, qos: str) -> None:
        self.did.append(f"{qos} leaves")

    def kill_agent(self) -> None:
        self.did.append("kill")
        self.restarted = ["the agent ended"]

    def drift(self) -> None:
        self.did.append("drift")

    def ended(self) -> Iterable[str]:
        found, self.restarted = self.restarted, []
        return found

    def records(self) -> Iterable[Record]:
        return self.trail

    def decisions(self) -> Snapshot | None:
        return SNAPSHOT

    def notes(self, *, small: bool) -> tuple[Sequence[str], Sequence[str]]:
        return (["above"], []) if small else (["above"] * 2, ["below"])


@pytest.fixture
def place() -> FakeTour:
    return FakeTour()


def done(place: FakeTour, key: str) -> None:
    """Presses the key until it is taken: the action before it may not have ended."""
    before = len(place.did)

    def taken() -> bool:
        if len(place.did) == before:
            place.press(key)
        return len(place.did) > before

    eventually(f"{key} is taken", taken)


def test_a_key_lets_a_pod_come_and_the_next_time_leave(place: FakeTour) -> None:
    place.begin()
    place.plays = False
    for key in ("1", "3", "1"):
        done(place, key)
    place.close()
    assert [each for each in place.did if "LSE" in each] == ["LSE comes", "LSE leaves"]
    assert place.did[-2:] == ["LS leaves", "LSE leaves"]
    assert place.did[:2] == ["LS comes", "BE comes"]


def test_a_pod_that_did_not_come_is_tried_again(place: FakeTour) -> None:
    place.comes = False
    for _ in range(2):
        done(place, "2")
    place.close()
    assert place.did == ["LSR comes", "LSR comes"]


def test_faults_and_unknown_keys(place: FakeTour) -> None:
    place.plays = False
    for key in ("d", "k", "x", ""):
        place.press(key)
    place.turn()
    place.close()
    assert place.did == ["drift", "kill"]
    assert [each[10:] for each in place.story()] == ["the agent ended"]


def test_it_plays_until_the_key_ends_that(place: FakeTour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "SCENES", ((0.0, "d"), (0.0, "k")))
    place.turn()
    place.turn()
    place.press("a")
    place.turn()
    place.close()
    assert place.did == ["drift", "kill"]


def test_the_history_is_in_order_of_time_and_gives_reasons(place: FakeTour) -> None:
    def written(seconds: float, container: str, field: str = "cpuset.cpus") -> Record:
        return Record(
            1,
            audit.stamp(seconds),
            "agent",
            AuditEvent.CGROUP_WRITTEN,
            "demo",
            "ls",
            container=container,
            field=field,
            before="0-1",
            after="0",
            reason=WriteReason.DECISION,
            message="pod demo/lse owns CPUs 1",
        )

    late = 4e9
    place.add("first")
    place.trail = [written(late, "main"), written(late, ""), written(late, "main", "cpu.shares")]
    place.close()
    first, second = place.story()
    assert first.endswith("  first")
    assert second.endswith(
        "  demo/ls: container main moves to CPUs 0 (before: 0-1): pod demo/lse owns CPUs 1."
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 50), (200, 60), (60, 30)])
def test_the_picture_fits_and_ends_with_the_keys(place: FakeTour, width: int, height: int) -> None:
    for number in range(100):
        place.add(f"event {number} " + "word " * 20)
    place.close()
    lines = tour.picture(place, machine(), width, height, colour=False).splitlines()
    assert len(lines) <= height - 1
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("1 LSE · 2 LSR")
    text = "\n".join(lines)
    assert "demo/lse  LSE" in text
    assert "event 99" in text
    assert ("below" in text) == (height >= 30)
