"""How the strategies of a node are shown."""

from __future__ import annotations

import json

from agent.model.node_slo import CpuBurst, node_slo
from agent.model.pod.annotations import CPU_BURST
from agent.usage.pod_strategies import PodStrategies
from agent.usage.strategies import Strategies
from agent.view import strategies as view

SPEC = {
    "cpuBurstStrategy": {"policy": "auto"},
    "hostApplications": [{"name": "a\x1b"}],
}
SHOWN = Strategies(
    node_slo({"spec": SPEC})[0],
    {"cpuBurstStrategy": "pool a\n", "hostApplications": "NodeSLO"},
    ("NodeSLO n: spec.systemStrategy: is wrong",),
    ("nodeslos: 403",),
    {"ns/p": PodStrategies(CpuBurst("auto", 50), own=(CPU_BURST,))},
    ("pod ns/q: is wrong",),
)


def test_each_section_has_its_origin_and_what_is_not_default() -> None:
    assert view.as_text(SHOWN).splitlines() == [
        "Strategies of this node:",
        "  resourceUsedThresholdWithBE  default",
        "  resourceQOSStrategy          default",
        "  cpuBurstStrategy             pool a?",
        '    policy: "auto"',
        "  systemStrategy               default",
        "  hostApplications             NodeSLO",
        '    [0].name: "a\\u001b"',
        "Overridden by annotations of pods:",
        "  ns/p  koordinator.sh/cpuBurst",
        '    policy: "auto"',
        "    cpuBurstPercent: 50",
        "Bad values, which have no effect:",
        "  NodeSLO n: spec.systemStrategy: is wrong",
        "  pod ns/q: is wrong",
        "These are the last strategies that could be read:",
        "  nodeslos: 403",
    ]


def test_the_json_has_all_fields() -> None:
    shown = json.loads(view.as_json(SHOWN))
    assert shown["strategies"]["slo"]["cpuBurstStrategy"]["cpuBurstPercent"] == 1000
    assert shown["strategies"]["origins"]["hostApplications"] == "NodeSLO"
    assert shown["schema_version"] == 1
