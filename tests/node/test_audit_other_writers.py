"""Other processes that keep changing what the agent has set."""

from __future__ import annotations

from agent.model.audit import Record
from agent.node.audit import LASTING_SECONDS, REPEATED, OtherWriters
from agent.node.node_findings import NodeCode, found, of_changes
from agent.telemetry.metrics import AgentMetrics
from tests.node.world import World

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
