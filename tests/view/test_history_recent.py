"""Recent changes from the audit trail, for pages and terminals."""

from __future__ import annotations

import pytest

from agent.model import audit
from agent.model.audit import AuditEvent, Record, WriteReason
from agent.view.history import PoolSize, Recent, RecentChanges

DAY = 1_700_000_000


def record(event: str, seconds: float, /, **values: object) -> Record:
    defaults = {"namespace": "ns", "pod": "a", "uid": "u", "process": "agent"}
    return Record(1, audit.stamp(DAY + seconds), event=event, **{**defaults, **values})  # type: ignore[arg-type]


def pool(seconds: float, before: str | None, after: str) -> Record:
    return record(
        AuditEvent.POOL_CHANGED, seconds, field="ls-pool", numa_node=0, before=before, after=after
    )


def recent(*records: Record, start: float = 0) -> Recent:
    changes = RecentChanges()
    for each in records:
        changes.add(each)
    return changes.since(audit.stamp(DAY + start))


def test_the_time_since_which_a_pod_has_its_cpus() -> None:
    assert recent(record(AuditEvent.POD_DECIDED, 1)).since == {"u": audit.stamp(DAY + 1)}
    later = recent(record(AuditEvent.POD_DECIDED, 1), record(AuditEvent.CPUS_CHANGED, 2))
    assert later.since == {"u": audit.stamp(DAY + 2)}
    assert recent(record(AuditEvent.POD_DECIDED, 1), record(AuditEvent.POD_ENDED, 2)).since == {}


def test_changes_are_newest_first_and_have_a_sentence() -> None:
    found = recent(
        record(AuditEvent.CPUS_ASSIGNED, 1, after="2-3", reason="ResourceStatus"),
        record(AuditEvent.CLAIM_NOT_HONORED, 2, message="CPUs 2 belong to pod ns/b"),
    )
    assert [(each.kind, each.pod) for each in found.changes] == [
        ("refusal", "ns/a"),
        ("decision", "ns/a"),
    ]
    assert found.changes[1].text == "The pod owns CPUs 2-3, as its annotation resource-status says."


@pytest.mark.parametrize(
    ("event", "values", "kind"),
    [
        (AuditEvent.CGROUP_WRITTEN, {"field": "cpuset.cpus", "container": "c"}, "move"),
        (AuditEvent.CGROUP_WRITTEN, {"field": "cpuset.cpus"}, ""),
        (AuditEvent.CGROUP_WRITTEN, {"field": "cpu.max", "container": "c"}, ""),
        (
            AuditEvent.CGROUP_WRITTEN,
            {"field": "cpuset.cpus", "reason": WriteReason.CHANGED_BY_OTHER},
            "drift",
        ),
        (AuditEvent.CGROUP_WRITE_FAILED, {"field": "cpu.max"}, "drift"),
        (AuditEvent.CPUS_MOVED, {"container": "c"}, "move"),
        (AuditEvent.CONTAINER_ADMITTED, {"container": "c"}, ""),
        ("AnEventOfALaterVersion", {}, ""),
    ],
)
def test_kinds(event: str, values: dict[str, object], kind: str) -> None:
    assert RecentChanges().add(record(event, 1, **values)) is bool(kind)
    assert [each.kind for each in recent(record(event, 1, **values)).changes] == (
        [kind] * bool(kind)
    )


def test_sizes_of_pools_start_with_the_size_before_the_first_change() -> None:
    found = recent(pool(10, "0-3", "0-1"), pool(20, "0-1", "0-3"))
    times = [audit.stamp(DAY + seconds) for seconds in (0, 10, 20)]
    assert [(each.time, each.cpus) for each in found.pools] == list(
        zip(times, (4, 2, 4), strict=True)
    )


def test_a_pool_has_no_size_before_the_first_decision() -> None:
    found = recent(pool(10, None, "0-1"), pool(20, "0-1", "0-3"))
    assert [each.cpus for each in found.pools] == [2, 4]


def test_a_pool_that_changed_before_the_start_has_its_size_at_the_start() -> None:
    found = recent(pool(10, "0-3", "0-1"), pool(20, "0-1", "0-2"), start=15)
    assert found.pools == (
        PoolSize(audit.stamp(DAY + 15), "LS", 0, 2),
        PoolSize(audit.stamp(DAY + 20), "LS", 0, 3),
    )


def test_an_invalid_cpu_list_of_a_pool_counts_as_empty() -> None:
    assert [each.cpus for each in recent(pool(1, "?", "x")).pools] == [0, 0]


def test_the_number_of_kept_changes_is_bounded() -> None:
    changes = RecentChanges()
    for number in range(5_000):
        changes.add(record(AuditEvent.CPUS_MOVED, number, container="c", after=str(number)))
        changes.add(record(AuditEvent.POD_DECIDED, number, pod=f"p{number}", uid="u"))
        changes.add(pool(number, "0", "0-1"))
    found = changes.since(audit.stamp(DAY))
    assert len(found.changes) < 500
    assert len(found.pools) <= 2_000
    assert found.changes[0].time == audit.stamp(DAY + 4_999)
