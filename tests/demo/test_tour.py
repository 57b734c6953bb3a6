"""The keys, the events and the screen of the tour, without a runtime."""

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
    """`actions`: the started actions. `exists`: the result of `create_pod`."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[str] = []
        self.exists = True
        self.audit_records: list[Record] = []
        self.restarted: list[str] = []

    def create_pod(self, qos: str) -> bool:
        self.actions.append(f"{qos} created")
        return self.exists

    def delete_pod(self, qos: str) -> None:
        self.actions.append(f"{qos} deleted")

    def kill_agent(self) -> None:
        self.actions.append("kill")
        self.restarted = ["the agent ended"]

    def drift(self) -> None:
        self.actions.append("drift")

    def restart_ended(self) -> Iterable[str]:
        found, self.restarted = self.restarted, []
        return found

    def records(self) -> Iterable[Record]:
        return self.audit_records

    def decisions(self) -> Snapshot | None:
        return SNAPSHOT

    def notes(self, *, small: bool) -> tuple[Sequence[str], Sequence[str]]:
        return (["above"], []) if small else (["above"] * 2, ["below"])


@pytest.fixture
def fake() -> FakeTour:
    return FakeTour()


def press_until_accepted(fake: FakeTour, key: str) -> None:
    """Presses the key until its action starts, after the end of the action before."""
    before = len(fake.actions)

    def accepted() -> bool:
        if len(fake.actions) == before:
            fake.press(key)
        return len(fake.actions) > before

    eventually(f"{key} is accepted", accepted)


def test_a_key_creates_a_pod_and_the_next_press_deletes_it(fake: FakeTour) -> None:
    fake.begin()
    fake.automatic = False
    for key in ("1", "3", "1"):
        press_until_accepted(fake, key)
    fake.close()
    assert [each for each in fake.actions if "LSE" in each] == ["LSE created", "LSE deleted"]
    assert fake.actions[-2:] == ["LS deleted", "LSE deleted"]
    assert fake.actions[:2] == ["LS created", "BE created"]


def test_a_pod_that_was_not_created_is_created_by_the_next_press(fake: FakeTour) -> None:
    fake.exists = False
    for _ in range(2):
        press_until_accepted(fake, "2")
    fake.close()
    assert fake.actions == ["LSR created", "LSR created"]


def test_keys_of_faults_cause_them_and_unknown_keys_do_nothing(fake: FakeTour) -> None:
    fake.automatic = False
    for key in ("d", "k", "x", ""):
        fake.press(key)
    fake.advance()
    fake.close()
    assert fake.actions == ["drift", "kill"]
    assert [each[10:] for each in fake.event_lines()] == ["the agent ended"]


def test_the_tour_is_automatic_until_the_key_stops_it(
    fake: FakeTour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tour, "ACTIONS", ((0.0, "d"), (0.0, "k")))
    fake.advance()
    fake.advance()
    fake.press("a")
    fake.advance()
    fake.close()
    assert fake.actions == ["drift", "kill"]


def test_the_history_is_in_order_of_time_and_gives_reasons(fake: FakeTour) -> None:
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
    fake.add("first")
    fake.audit_records = [
        written(late, "main"),
        written(late, ""),
        written(late, "main", "cpu.shares"),
    ]
    fake.close()
    first, second = fake.event_lines()
    assert first.endswith("  first")
    assert second.endswith(
        "  demo/ls: container main moves to CPUs 0 (before: 0-1): pod demo/lse owns CPUs 1."
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 50), (200, 60), (60, 30)])
def test_the_picture_fits_and_ends_with_the_keys(fake: FakeTour, width: int, height: int) -> None:
    for number in range(100):
        fake.add(f"event {number} " + "word " * 20)
    fake.close()
    lines = tour.render(fake, machine(), width, height, colour=False).splitlines()
    assert len(lines) <= height - 1
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("1 LSE · 2 LSR")
    text = "\n".join(lines)
    assert "demo/lse  LSE" in text
    assert "event 99" in text
    assert ("below" in text) == (height >= 30)
