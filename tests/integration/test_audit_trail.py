"""The audit trail of agent, proxy and `topolet restore` with a real runtime."""

from __future__ import annotations

import base64
import json
import time

from agent.model import audit
from agent.model.audit import Record
from agent.telemetry.audit import read
from tests.fixtures.pods import remove_pod, run_pod
from tests.integration.harness import TestNode, kernel_group
from tests.waiting import eventually


def recorded(node: TestNode, **wanted: str) -> list[Record]:
    """The records with these values."""
    records = read(str(node.state)).records
    return [
        each
        for each in records
        if all(getattr(each, name) == value for name, value in wanted.items())
    ]


def history(node: TestNode, pod: str) -> str:
    done = node.run_cli("history", pod, f"--state-dir={node.state}")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_history_of_an_lse_pod_and_an_ls_pod(node: TestNode) -> None:
    node.start_agent()
    node.start_proxy()
    _, ls = run_pod(node.proxied, node.spec("ls", "LS"))
    sandbox, lse = run_pod(node.proxied, node.spec("lse", "LSE", "1"))
    eventually("both have their CPUs", lambda: (node.cpus(ls), node.cpus(lse)) == ("0", "1"))
    eventually(
        "the change of the LS pod is recorded",
        lambda: recorded(node, pod="ls", field="cpuset.cpus", after="0", container="main"),
    )
    (change,) = recorded(node, pod="ls", field="cpuset.cpus", after="0", container="main")
    assert (change.process, change.event, change.before) == ("agent", "CgroupWritten", "0-1")
    assert change.message.endswith("pod default/lse owns CPUs 1")
    (admitted,) = recorded(node, pod="lse", event="ContainerAdmitted")
    assert (admitted.process, admitted.after, admitted.container) == ("proxy", "1", "main")

    text = history(node, "default/lse")
    assert "The pod owns CPUs 1, as its annotation resource-status says." in text
    assert "Container main may be created with CPUs 1" in text
    assert "by topolet proxy." in text

    group = kernel_group(node.direct.container_status(ls).pid, "cpuset")
    (group / "cpuset.cpus").write_text("0-1")
    eventually("the drift is recorded", lambda: recorded(node, pod="ls", reason="ChangedByOther"))
    assert "another process had set it to 0-1" in history(node, "ls")

    page = {each: json.loads(node.get(f"/page/{each}")[1]) for each in ("state", "history", "load")}
    assert {each["title"]: each.get("own") for each in page["state"]["pods"]} == {
        "default/ls": None,
        "default/lse": "1",
    }
    assert "another process had set it to 0-1" in page["history"]["drift"][0]["text"]
    assert len(base64.b64decode(page["load"]["load"])) == len(page["state"]["cpus"]) == 2

    remove_pod(node.direct, sandbox)
    eventually(
        "the end of the LSE pod is recorded", lambda: recorded(node, pod="lse", event="PodEnded")
    )
    assert "The pod is gone." in history(node, "lse")


def test_a_killed_agent_and_a_restore(node: TestNode) -> None:
    node.start_agent()
    run_pod(node.direct, node.spec("ls", "LS"))
    run_pod(node.direct, node.spec("lse", "LSE", "1"))
    eventually("a change is recorded", lambda: recorded(node, pod="ls", after="0"))
    before = len(recorded(node))
    node.kill_agent()
    node.start_agent()
    assert read(str(node.state)).unreadable == 0
    assert len(recorded(node)) >= before
    node.stop_agent()
    assert node.restore().returncode == 0
    restored = recorded(node, process="restore")
    assert {each.event for each in restored} == {"CgroupRestored"}
    assert {each.pod for each in restored} >= {"ls", "lse"}
    done = node.run_cli("audit", f"--state-dir={node.state}", "--since=1h", "-o", "json")
    found = json.loads(done.stdout)
    assert len(found["records"]) == len(recorded(node))
    assert all(each["time"] <= audit.stamp(time.time()) for each in found["records"])
