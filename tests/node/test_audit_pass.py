"""The audit records of a pass, on a cgroup v1 tree of files."""

from __future__ import annotations

import pytest

from agent.allocate.node_local.claim import Move, MoveReason
from agent.cgroup.order import GroupChange, ValueChange, ValueOutcome, WriteOutcome, WriteState
from agent.model.audit import AuditEvent, Record, WriteReason
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.visibility import DeviceNode, Visibility, VisibleGpu
from agent.model.linux_resources import LinuxResources
from agent.model.notifications import PodAnnounced
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted
from agent.node.audit import (
    LASTING_SECONDS,
    REPEATED,
    OtherWriters,
    PassAudit,
    Written,
    cause,
    decisions,
)
from agent.node.node_findings import NodeCode, found, of_changes
from agent.telemetry.metrics import AgentMetrics
from tests.node.world import World


def lines(records: list[Record]) -> list[tuple[str, ...]]:
    return [
        (each.event, each.title, each.container, each.before or "", each.after or "", each.reason)
        for each in records
    ]


def snapshot(**values: object) -> Snapshot:
    pools = (Pool(0, 0, "0-3"),)
    defaults = {"pools": {"ls": pools, "be": pools}, "owners": (), "pods": {}, "containers": {}}
    return Snapshot(1, 1, "boot", False, **{**defaults, **values})  # type: ignore[arg-type]


def test_records_of_an_owner_that_starts_and_ends(world: World) -> None:
    world.container(world.sandbox("web", "LS"))
    agent = world.agent()
    agent.reconcile()
    assert lines(world.records) == [
        ("PoolChanged", "", "", "", "0-3", ""),
        ("PoolChanged", "", "", "", "0-3", ""),
        ("PodDecided", "ns/web", "", "", "0-3", ""),
    ]
    world.records.clear()
    own = world.container(world.sandbox("own", "LSE", "1"))
    agent.reconcile()
    assert lines(world.records) == [
        ("PoolChanged", "", "", "0-3", "0,2-3", ""),
        ("PoolChanged", "", "", "0-3", "0,2-3", ""),
        ("PodDecided", "ns/own", "", "", "1", ""),
        ("CPUsAssigned", "ns/own", "", "", "1", "ResourceStatus"),
        ("CgroupWritten", "ns/own", "main", "0-3", "1", "Decision"),
        ("CgroupWritten", "ns/web", "main", "0-3", "0,2-3", "Decision"),
    ]
    assert world.records[4].message == "the pod owns these CPUs"
    written_web = world.records[5]
    assert written_web.message == (
        "a container of class LS shares its pool; pod ns/own owns CPUs 1"
    )
    assert (written_web.field, written_web.group) == (
        "cpuset.cpus",
        "/kubepods/burstable/podweb/c-web-main",
    )
    assert (written_web.uid, world.records[0].field, world.records[0].numa_node) == (
        "web",
        "ls-pool",
        0,
    )
    world.records.clear()
    agent.reconcile()
    assert world.records == []
    world.end_container(own)
    world.runtime.listed_sandboxes = world.runtime.listed_sandboxes[:1]
    agent.reconcile()
    of_owner = [each for each in lines(world.records) if each[1] == "ns/own"]
    assert of_owner == [
        ("CPUsReleased", "ns/own", "", "1", "", ""),
        ("PodEnded", "ns/own", "", "", "", ""),
    ]
    assert world.records[0].message == "pod ns/own owns no CPUs any more"


def test_the_record_names_a_value_that_another_process_set(world: World) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    agent.reconcile()
    group = "kubepods/burstable/podown/c-own-main"
    (world.cpuset / group / "cpuset.cpus").write_text("0-1\n")
    world.records.clear()
    agent.reconcile()
    assert lines(world.records) == [
        ("CgroupWritten", "ns/own", "main", "0-1", "1", "ChangedByOther")
    ]
    assert world.records[0].message == "another process had set it to 0-1"


def test_a_restart_is_not_a_change(world: World) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    world.agent().reconcile()
    world.records.clear()
    world.agent().reconcile()
    assert world.records == []


def test_a_refused_claim(world: World) -> None:
    world.container(world.sandbox("own", "LSE", "99"))
    agent = world.agent()
    agent.reconcile()
    refused = [each for each in world.records if each.event == AuditEvent.CLAIM_NOT_HONORED]
    assert [(each.title, "99" in each.message) for each in refused] == [("ns/own", True)]
    agent.reconcile()
    assert len([each for each in world.records if each in refused]) == 1


def test_an_announced_pod(world: World) -> None:
    """Its cgroup has no CPUs of owners until its sandbox has CPUs of its own."""
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    agent.reconcile()
    world.records.clear()
    world.group("kubepods/burstable/podnew")
    parent = "/kubepods/burstable/podnew"
    agent.notified([PodAnnounced("new", "ns", "new", {}, {}, parent)])
    agent.reconcile()
    written = [each for each in world.records if each.group == parent]
    assert lines(written) == [("CgroupWritten", "ns/new", "", "0-3", "0,2-3", "SandboxAnnounced")]
    world.records.clear()
    world.sandbox("new", "LS")
    agent.reconcile()
    written = [each for each in world.records if each.group == parent]
    assert lines(written) == [("CgroupRestored", "ns/new", "", "0,2-3", "0-3", "SandboxMade")]


def test_an_excluded_pod(world: World) -> None:
    world.container(world.sandbox("web", "LS"))
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    agent.reconcile()
    world.records.clear()
    agent.exclude = ("ns/web",)
    agent.reconcile()
    restored = [each for each in world.records if each.event == AuditEvent.CGROUP_RESTORED]
    assert {each.reason for each in restored} == {"Excluded"}
    assert {each.after for each in restored} >= {"0-3"}


def test_a_failed_pass_records_its_writes(world: World) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    (world.state / "snapshot.json").mkdir()
    with pytest.raises(OSError, match=r"snapshot\.json"):
        agent.reconcile()
    assert lines(world.records)[0][:2] == ("CgroupWritten", "ns/own")


def test_a_failure_is_recorded_once() -> None:
    records: list[Record] = []
    audit = PassAudit(records.extend)
    failed = GroupChange("/a", WriteState.FAILED, CpuSet([1]), None, "refused")
    value = ValueChange("/a", "cpu.max", WriteState.FAILED, "1", None, "busy", refused=True)
    for _ in range(3):
        audit.written(
            [Written(WriteReason.DECISION, WriteOutcome((failed,)), ValueOutcome((value,)))]
        )
        audit.end((), {})
    assert [(each.event, each.field, each.message) for each in records] == [
        ("CgroupWriteFailed", "cpuset.cpus", "refused"),
        ("CgroupWriteFailed", "cpu.max", "busy"),
    ]


def test_moves_blocked_owners_and_devices() -> None:
    gpu = Visibility((VisibleGpu("GPU-1"),), {"rdma": (DeviceNode("/dev/uverbs0"),)})
    secret = Visibility((), environment=(("TOKEN", "secret"),), refused="GPU-1 is pod b's")
    before = snapshot(
        pods={
            "a": PodWanted(
                "ns/a", QoS.LSE, Wanted(LinuxResources("1")), {"main": Wanted(LinuxResources("1"))}
            )
        }
    )
    after = snapshot(
        pods={
            "a": PodWanted(
                "ns/a",
                QoS.LSE,
                Wanted(LinuxResources("1")),
                {"main": Wanted(LinuxResources("1"), blocked="ns/b runs there", visible=gpu)},
            ),
            "c": PodWanted("ns/c", QoS.LS, Wanted(LinuxResources("0"), visible=secret)),
        }
    )
    move = Move("a", "main", CpuSet([1]), CpuSet([2]), MoveReason.MAKE_ROOM)
    found = decisions(before, after, [move])
    assert lines(found) == [
        ("CPUsInUse", "ns/a", "", "", "", ""),
        ("DevicesChanged", "ns/a", "main", "", "GPU-1,/dev/uverbs0", ""),
        ("PodDecided", "ns/c", "", "", "0", ""),
        ("DevicesRefused", "ns/c", "", "", "", ""),
        ("CPUsMoved", "ns/a", "main", "1", "2", "MakeRoom"),
    ]
    assert found[-1].message == "it makes room for another container"
    assert "secret" not in repr(found)
    assert [each.event for each in decisions(after, before, [])] == [
        AuditEvent.CPUS_FREE,
        AuditEvent.POD_ENDED,
    ]


def test_the_cause_names_a_few_owners() -> None:
    def owner(name: str, cpus: str = "1") -> Owner:
        return Owner(name, f"ns/{name}", QoS.LSE, cpus)

    many = snapshot(owners=tuple(owner(each) for each in "abcd"))
    assert cause(None, many) == (
        "pod ns/a owns CPUs 1, pod ns/b owns CPUs 1, 2 more owners changed"
    )
    assert cause(many, snapshot(owners=many.owners[:3])) == "pod ns/d owns no CPUs any more"
    assert cause(many, many) == ""


CHANGED = Record(
    namespace="ns",
    pod="own",
    container="main",
    field="cpuset.cpus",
    time="2026-01-02T03:04:05.000000Z",
    message="another process had set it to 0-1",
)
TEXT = "another process keeps changing cpuset.cpus of ns/own main"


def test_repeated_changes_last_a_minute() -> None:
    now = 100.0
    others = OtherWriters(AgentMetrics(), lambda: now)
    for _ in range(REPEATED - 1):
        others.changed(CHANGED)
    assert others.lasting() == ()
    now += 1
    others.changed(CHANGED)
    assert others.lasting() == (TEXT,)
    now += LASTING_SECONDS
    assert others.lasting() == ()


def test_a_value_that_another_process_keeps_setting_is_counted_and_lasts(world: World) -> None:
    world.container(world.sandbox("own", "LSE", "1"))
    agent = world.agent()
    agent.reconcile()
    assert world.metric('topolet_foreign_changes_total{kind="cpus"}') == 0
    path = world.cpuset / "kubepods/burstable/podown/c-own-main/cpuset.cpus"
    for _ in range(REPEATED):
        path.write_text("0-1\n")
        agent.reconcile()
        assert path.read_text().strip() == "1"
    assert world.metric('topolet_foreign_changes_total{kind="cpus"}') == REPEATED
    assert world.metric('topolet_foreign_changes_total{kind="limit"}') == 0


def test_doctor_finds_repeated_changes_and_names_suspects() -> None:
    assert of_changes([CHANGED] * 2, {}) == {}
    suspects = {NodeCode.KOORDLET: "koordlet runs with CPUSetAllocator"}
    other = [Record(group=f"/g{place}", field="cpu.max") for place in range(9) for _ in range(3)]
    (finding,) = found(of_changes([*other, *[CHANGED] * 3], suspects))
    assert finding.severity == "error"
    assert finding.text.startswith(
        "in the last 5 minutes another process changed cpu.max of /g0 3 times, "
    )
    assert finding.text.endswith(
        ", 2 more files, the last time at 2026-01-02T03:04:05.000000Z: another process had set it "
        "to 0-1; koordlet runs with CPUSetAllocator"
    )
