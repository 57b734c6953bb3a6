"""The strategies that an agent follows, by the NodeSLO of a real API server."""

from __future__ import annotations

import json
from pathlib import Path

from agent.usage import STRATEGIES_FILE, strategies
from agent.usage.strategies import Strategies
from tests.deploy.manifests import objects
from tests.integration.apiserver.definitions import NODE_SLO, NODE_SLO_DEFINITION, NODE_SLOS
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode
from tests.integration.incluster import READ_RULES, WRITE_RULES, ClusterNode
from tests.waiting import eventually

TIMEOUT_SECONDS = 90.0
"""The agent asks once a minute whether there is such a kind."""
RULES = [
    *READ_RULES,
    *WRITE_RULES,
    {"apiGroups": ["slo.koordinator.sh"], "resources": ["nodeslos"], "verbs": ["list", "watch"]},
]


def followed(node: TestNode) -> Strategies:
    try:
        return strategies.read(str(node.state / STRATEGIES_FILE))
    except FileNotFoundError:
        return Strategies()


def doctors_text(node: TestNode) -> str:
    """What the doctor says about strategies."""
    done = node.run_cli(
        "doctor",
        "--output=json",
        f"--runtime-endpoint=unix://{node.containerd.socket}",
        f"--state-dir={node.state}",
        f"--kubelet-dir={node.folder / 'kubelet'}",
    )
    return "".join(
        finding["text"]
        for finding in json.loads(done.stdout)["node"]
        if finding["code"] == "strategies-invalid"
    )


def test_a_node_follows_its_node_slo_and_else_our_configuration(
    apiserver: ApiServer, node: TestNode, tmp_path: Path
) -> None:
    for definition in objects("crds"):
        apiserver.apply(definition)
    cluster_node = ClusterNode(apiserver, node, "followed", RULES)
    apiserver.admin.merge("/api/v1/nodes/followed", {"metadata": {"labels": {"pool": "gold"}}})
    pool = {"name": "gold", "nodeSelector": {"matchLabels": {"pool": "gold"}}, "policy": "auto"}
    (tmp_path / "cpu-burst-config").write_text(json.dumps({"nodeStrategies": [pool]}))
    cluster_node.start_agent(node, "--usage", "--node-slo=follow", f"--slo-config={tmp_path}")

    def origin() -> str:
        return followed(node).origins.get("cpuBurstStrategy", "")

    def percent() -> int:
        return followed(node).slo.cpu_burst_strategy.cpu_burst_percent

    eventually("our pool is in force", lambda: origin() == "pool gold", TIMEOUT_SECONDS)
    apiserver.apply(NODE_SLO_DEFINITION)
    body = {
        **NODE_SLO,
        "metadata": {"name": "followed"},
        "spec": {"cpuBurstStrategy": {"cpuBurstPercent": 50}, "extensions": {"any": 1}},
    }
    apiserver.apply({**body, "metadata": {"name": "another"}})
    apiserver.apply(body)
    eventually("the NodeSLO is found", lambda: origin() == "NodeSLO", TIMEOUT_SECONDS)
    assert (percent(), followed(node).slo.cpu_burst_strategy.policy) == (50, "none")

    changed = {"spec": {"cpuBurstStrategy": {"cpuBurstPercent": 60}}}
    apiserver.admin.merge(f"{NODE_SLOS}/followed", changed)
    eventually("a change arrives", lambda: percent() == 60)
    assert doctors_text(node) == ""
    explained = node.run_cli("explain", f"--state-dir={node.state}", "node", "strategies")
    assert "  cpuBurstStrategy             NodeSLO\n    cpuBurstPercent: 60\n" in explained.stdout

    broken = {"spec": {"cpuBurstStrategy": {"cpuBurstPercent": -1}}}
    apiserver.admin.merge(f"{NODE_SLOS}/followed", broken)
    eventually("the bad section is default", lambda: percent() == 1000)
    trouble = "NodeSLO followed: spec.cpuBurstStrategy.cpuBurstPercent: "
    assert doctors_text(node).startswith(trouble)
    assert node.metric('topolet_source_problems{source="strategies"}') == 1

    node.kill_agent()
    cluster_node.start_agent(node, "--usage", "--node-slo=follow", f"--slo-config={tmp_path}")
    apiserver.admin.delete(f"{NODE_SLOS}/followed")
    eventually("our pool is in force again", lambda: origin() == "pool gold", TIMEOUT_SECONDS)
    assert node.metric('topolet_source_problems{source="strategies"}') == 0

    node.kill_agent()
    node.start_agent()
    assert not (node.state / STRATEGIES_FILE).exists()
