"""The audit trail as sentences, and its recent changes for pages and terminals."""

from __future__ import annotations

import datetime

import pytest

from agent.model import audit
from agent.model.audit import AuditEvent, Record, WriteReason
from agent.view.history import (
    PoolSize,
    Recent,
    RecentChanges,
    as_table,
    as_text,
    local,
    pod_histories,
    sentence,
)

BERLIN = datetime.timezone(datetime.timedelta(hours=2))
DAY = 1_700_000_000


def record(event: str, seconds: float = 0, /, **values: object) -> Record:
    defaults = {"namespace": "default", "pod": "web", "uid": "u", "process": "agent"}
    return Record(1, audit.stamp(DAY + seconds), event=event, **{**defaults, **values})  # type: ignore[arg-type]


EVENTS = sorted(value for name, value in vars(AuditEvent).items() if name.isupper())


@pytest.mark.parametrize("event", EVENTS)
def test_each_event_has_a_sentence(event: str) -> None:
    text = sentence(record(event, field="cpus", before="0", after="1", message="why", reason="x"))
    assert text[0].isupper()
    assert text.endswith(".")
    assert "None" not in text


def test_sentences() -> None:
    assert sentence(record("CPUsAssigned", after="2-3", reason="ResourceStatus")) == (
        "The pod owns CPUs 2-3, as its annotation resource-status says."
    )
    of_claim = record("CPUsAssigned", after="2-3", reason="ResourceClaim")
    assert sentence(of_claim) == "The pod owns CPUs 2-3, by its ResourceClaims."
    refused = record(AuditEvent.CLAIM_NOT_PREPARED, message="ResourceClaim ns/a: no", reason="x")
    assert sentence(refused).startswith(
        "The kubelet can't start the pod, because a claim gets no CPUs: ResourceClaim ns/a: no"
    )
    moved = record(
        "CgroupWritten",
        field="cpuset.cpus",
        before="0-3",
        after="0-1",
        container="main",
        reason=WriteReason.DECISION,
        message="a container of class LS shares its pool; pod default/own owns CPUs 2-3",
    )
    assert sentence(moved) == (
        "Container main moves to CPUs 0-1 (before: 0-3): a container of class LS shares its pool; "
        "pod default/own owns CPUs 2-3."
    )
    restored = record(
        "CgroupRestored", field="cpu.max", after="max 100000", reason="Restore", process="restore"
    )
    assert sentence(restored) == (
        "The file cpu.max of the pod's cgroup has its original value again (max 100000): "
        "everything is restored, by topolet restore."
    )
    assert sentence(record("NewEvent", field="cpus", before="1", after="2")) == (
        "NewEvent cpus 1 -> 2."
    )


def test_a_history_has_days_time_zones_and_no_repetition() -> None:
    records = [
        record("PodDecided", 0, after="0-3", message="class LS"),
        record("CPUsInUse", 1, message="b runs there"),
        record("CPUsInUse", 2, message="b runs there"),
        record("CgroupWritten", 3, uid="", field="cpu.max", after="max", pod="web"),
        record("PodEnded", 86_400),
        record("PodDecided", 86_401, uid="v", message="class LS"),
        record("PoolChanged", 86_402, namespace="", pod="", uid="", field="ls-pool"),
    ]
    found = pod_histories(records)
    assert [(each.title, each.uid, len(each.sentences)) for each in found] == [
        ("default/web", "u", 4),
        ("default/web", "v", 1),
    ]
    assert as_text(found, BERLIN).splitlines()[:6] == [
        "Pod default/web, uid u",
        "  Wednesday, 2023-11-15",
        "    00:13:20.000+0200  The agent sees the pod for the first time: class LS, on CPUs 0-3.",
        "    00:13:21.000+0200  Its containers wait, because its CPUs are in use: b runs there.",
        "    00:13:23.000+0200  The file cpu.max of the pod's cgroup becomes max.",
        "  Thursday, 2023-11-16",
    ]


def test_the_table() -> None:
    text = as_table(
        [
            record("PoolChanged", pod="", namespace="", field="ls-pool", numa_node=1, after="0"),
            record("CgroupWritten", container="a\x1b[2J", field="cpuset.cpus", before="1"),
        ],
        200,
        BERLIN,
    )
    header, pool, write = text.splitlines()
    assert header.split() == ["TIME", "PROCESS", "EVENT", "POD", "CONTAINER", "CHANGE", "WHY"]
    assert pool.startswith("2023-11-15 00:13:20.000+02:00  agent    PoolChanged    NUMA node 1")
    assert "a?[2J" in write
    assert "cpuset.cpus 1 -> -" in write
    assert as_table([], 80) == "No records.\n"


def test_an_invalid_time_is_the_epoch() -> None:
    assert local("yesterday").year == 1970


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
        ("refusal", "default/web"),
        ("decision", "default/web"),
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
