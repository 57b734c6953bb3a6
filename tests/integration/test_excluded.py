"""Excluded pods, and settings that change while the agent runs."""

import os
import signal

from tests.fixtures.pods import run_pod
from tests.integration.harness import TestNode
from tests.waiting import eventually


def test_reloaded_settings_exclude_a_pod_and_move_no_other(node: TestNode) -> None:
    config = node.folder / "topolet.toml"
    config.write_text("")
    node.start_agent(f"--config={config}")
    node.start_proxy()
    _, lse = run_pod(node.proxied, node.spec("lse", "LSE", "1"))
    _, ls = run_pod(node.proxied, node.spec("ls", "LS"))
    _, other = run_pod(node.proxied, node.spec("other", "LS"))
    eventually("pools without CPU 1", lambda: (node.cpus(ls), node.cpus(other)) == ("0", "0"))

    config.write_text('exclude = "default/ls, kube-*"\n')
    os.kill(node.agent_pid, signal.SIGHUP)
    eventually("ls has all CPUs again", lambda: node.cpus(ls) == "0-1")
    assert (node.cpus(lse), node.cpus(other)) == ("1", "0")
    # The proxy reads the exclusions from the snapshot, which the agent writes last.
    snapshot = node.state / "snapshot.json"
    eventually("the snapshot has the exclusions", lambda: "kube-*" in snapshot.read_text())
    _, late = run_pod(node.proxied, node.spec("db", "LS", namespace="kube-system"))
    assert node.cpus(late) == "0-1", "the proxy passed its creation unchanged"

    config.write_text('exclude = "a/b/c/d"\n')
    os.kill(node.agent_pid, signal.SIGHUP)
    eventually("the error is logged", lambda: "old settings stay in force" in node.log("agent"))
    assert node.get("/readyz")[0] == 200

    config.write_text("")
    os.kill(node.agent_pid, signal.SIGHUP)
    eventually("no pod is excluded", lambda: (node.cpus(ls), node.cpus(late)) == ("0", "0"))
