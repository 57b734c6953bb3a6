from __future__ import annotations

from agent.model.rebind_resource import (
    RebindPhase,
    RebindRequest,
    RebindStatus,
    StatusMeasures,
    StatusMove,
    StatusPlan,
)
from agent.view.rebind import draw


def test_a_plan_is_shown_with_its_moves_and_measures() -> None:
    shared = '{"numaNodeResources":[{"node":0,"resources":{"cpu":"1"}},{"node":1,"resources":{}}]}'
    moves = (
        StatusMove("u1", "ns/a", '{"cpuset":"0,4"}', '{"cpuset":"4-5"}'),
        StatusMove("u2", "ns/b", shared, '{"numaNodeResources":[{"node":1,"resources":{}}]}'),
        StatusMove("u3", "ns/c", "unreadable", '{"cpuset":"9"}'),
    )
    plan = StatusPlan("", False, StatusMeasures(2, 1, 6, 2), StatusMeasures(0, 0, 4, 1), moves)
    status = RebindStatus(RebindPhase.SUCCEED, "pods moved: 3", "now", plan)
    assert draw(RebindRequest("r", "u", "n", status=status), 80).splitlines() == [
        "RebindResource r of node n: Succeed: pods moved: 3",
        "",
        "POD   FROM            TO",
        "ns/a  0,4             4-5",
        "ns/b  NUMA nodes 0,1  NUMA nodes 1",
        "ns/c  unreadable      9",
        "",
        "MEASURE            BEFORE  AFTER",
        "NUMA crossings     2       0",
        "broken cores       1       0",
        "cores in use       6       4",
        "NUMA nodes in use  2       1",
    ]


def test_without_a_plan_the_reason_is_shown() -> None:
    status = RebindStatus(RebindPhase.FAILED, "node n does not exist", "now")
    text = draw(RebindRequest("r", "u", "n", status=status), 80)
    assert text == "RebindResource r of node n: Failed: node n does not exist\n"
    assert draw(RebindRequest("r", "u", "n"), 80) == "RebindResource r of node n: Unknown\n"
