"""Colocation of a pod of a real API server in a real runtime: what the agent does, says and gives
back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.pods import run_pod
from tests.integration.apiserver.server import ApiServer
from tests.integration.harness import TestNode, kernel_group
from tests.integration.incluster import READ_RULES, WRITE_RULES, ClusterNode
from tests.waiting import eventually

FOLLOW = ("--usage", "--node-slo=follow")


def test_a_batch_pod_is_idle_until_its_feature_only_observes(
    apiserver: ApiServer, node: TestNode, tmp_path: Path
) -> None:
    cluster_node = ClusterNode(apiserver, node, "colocated", [*READ_RULES, *WRITE_RULES])
    batch = {"beClass": {"enable": True, "cpuQOS": {"enable": True, "groupIdentity": -1}}}
    (tmp_path / "resource-qos-config").write_text(json.dumps({"clusterStrategy": batch}))
    follow = (*FOLLOW, f"--slo-config={tmp_path}", "--colocation=act")
    cluster_node.start_agent(node, *follow)
    uid = cluster_node.pod("batch", "BE", "")
    spec = node.spec("batch", "BE", uid=uid, namespace="colocated", kube_class="besteffort")
    _, container = run_pod(node.direct, spec)
    group = kernel_group(node.direct.container_status(container).pid, "cpu").parent
    if not (group / "cpu.idle").exists():
        pytest.skip("this kernel has no cpu.idle")
    eventually("the pod is idle", lambda: (group / "cpu.idle").read_text() == "1\n")

    def explained(*words: str) -> str:
        runtime = f"--runtime-endpoint=unix://{node.containerd.socket}"
        done = node.run_cli("explain", *words, f"--state-dir={node.state}", runtime)
        assert done.returncode == 0, done.stderr
        return done.stdout

    values = explained("batch", "-n", "colocated", "--values=here")
    assert values.startswith("Pod colocated/batch (BE) has of Topolet:\n")
    assert (
        "  cpu.idle 1, and gets 0 back\n    cpu-priority: resourceQOSStrategy.beClass.cpuQOS "
        "(cluster strategy of --slo-config): groupIdentity -1, schedIdle 0\n"
    ) in values
    assert node.metric('topolet_colocation_files{feature="cpu-priority"}') == 1

    node.kill_agent()
    cluster_node.start_agent(node, *follow, "--colocation-features=cpu-priority=observe")
    eventually("it is idle no more", lambda: (group / "cpu.idle").read_text() == "0\n")
    would = f"pod{uid} cpu.idle: 0 -> 1"
    eventually("what it would write is told", lambda: would in explained("node", "colocation"))
