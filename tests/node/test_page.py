"""The values of the node's page, from real passes."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.http.requests import HttpRequest, dispatch
from agent.node.page import NodePage
from agent.usage.past import PastHour, PastLoad
from tests.fixtures.page import ServedNode, Shape

TINY = Shape(1, 2, 1, 2, 1, gpus=2, nics=1)
"""Four CPUs in two NUMA nodes."""


@pytest.fixture
def node(tmp_path: Path) -> ServedNode:
    return ServedNode(tmp_path, TINY)


def values(node: ServedNode, name: str) -> Any:
    request = HttpRequest("GET", f"/page/{name}", "", b"", False, "localhost", True)
    reply = dispatch(node.routes(), request)
    assert reply.status == 200
    return json.loads(reply.body)


def load(node: ServedNode) -> list[int]:
    return list(base64.b64decode(values(node, "load")["load"]))


def test_before_the_first_pass(node: ServedNode) -> None:
    assert values(node, "state")["cpus"] == []
    assert values(node, "load")["load"] == ""
    assert values(node, "history")["changes"] == []


def test_the_state_is_that_of_the_last_pass(node: ServedNode) -> None:
    node.pod("own", "LSE", "1")
    node.pod("web", "LS")
    node.reconcile()
    found = values(node, "state")
    assert found["node"] == "node-a"
    assert found["hardware"] == [
        "4 L1d of 512 KiB, 4 L1i of 512 KiB, 4 L2 of 512 KiB, 2 L3 of 32 MiB"
    ]
    assert {each["title"]: each.get("own", "") for each in found["pods"]} == {
        "ns/own": "1",
        "ns/web": "",
    }
    assert [each["kind"] for each in found["devices"]] == ["gpu", "nic", "gpu"]
    assert found["devices"][1]["state"] == "eth0"


def test_only_a_changed_state_changes_the_revision(node: ServedNode) -> None:
    node.pod("web", "LS")
    node.reconcile()
    node.reconcile()
    first = values(node, "load")
    node.use = {0: 50}
    node.load()
    node.reconcile()
    after = values(node, "load")
    assert (after["state"], after["history"]) == (first["state"], first["history"])
    node.pod("own", "LSE", "1")
    node.reconcile()
    changed = values(node, "load")
    assert changed["state"] > first["state"]
    assert changed["history"] > first["history"]


def test_revisions_of_another_agent_differ(node: ServedNode) -> None:
    node.reconcile()
    first = values(node, "load")
    root, state = node.world.root, str(node.world.state)
    restarted = NodePage(
        "node-a", root, state, node.last, node.sysfs, node.gpu_report, str, clock=lambda: 4e9
    )
    assert json.loads(restarted.load())["state"] != first["state"]


def test_an_unhealthy_device_and_its_holders(node: ServedNode) -> None:
    node.pod("own", "LSE", "1")
    node.reconcile()
    node.cards, node.unhealthy = {1: ("ns/own",)}, {1: "Xid 79: the GPU has fallen off the bus"}
    found = values(node, "state")
    gpu = found["devices"][2]
    assert (gpu["healthy"], gpu["holders"]) == (False, ["ns/own"])
    assert gpu["utilization_percent"] is None
    assert [(each["kind"], each["text"]) for each in found["attention"]] == [
        ("Device unhealthy", "Xid 79: the GPU has fallen off the bus")
    ]


def test_a_refused_claim_is_shown_once(node: ServedNode) -> None:
    node.pod("one", "LSE", "1")
    node.reconcile()
    node.pod("two", "LSE", "1")
    node.reconcile()
    found = values(node, "state")["attention"]
    assert [(each["kind"], each["pod"]) for each in found] == [("Claim refused", "ns/two")]


def test_the_load_is_that_since_the_last_read(
    node: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.node.page.LOAD_SECONDS", 0.0)
    node.reconcile()
    assert load(node) == [255] * 4
    node.busy = {2: 1.0, 3: 0.25}
    node.load()
    assert load(node) == [0, 0, 100, 25]


def test_browsers_share_a_read_of_the_load(
    node: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.node.page.LOAD_SECONDS", 3600.0)
    node.reconcile()
    load(node)
    node.busy = {0: 1.0}
    node.load()
    assert load(node) == [255] * 4


def test_gpu_utilization_is_by_address(node: ServedNode) -> None:
    node.reconcile()
    node.use = {0: 25}
    address = values(node, "state")["devices"][0]["address"]
    assert values(node, "load")["devices"][address] == {
        "percent": 25,
        "memory_used_bytes": 20 << 30,
    }


def test_without_devices(node: ServedNode) -> None:
    node.reconcile()
    page = NodePage("n", node.world.root, str(node.world.state), node.last, None, lambda: None, str)
    assert json.loads(page.state())["devices"] == []
    assert json.loads(page.load())["devices"] == {}


def test_changes_come_from_the_audit_trail_of_all_processes(node: ServedNode) -> None:
    node.pod("own", "LSE", "1")
    node.reconcile()
    found = values(node, "history")
    assert found["since"].keys() == {"own"}
    assert "ns/own" in {each.get("pod") for each in found["changes"]}
    node.end_pod("own")
    node.reconcile()
    restarted = values(node, "history")
    assert restarted["since"] == {}
    assert restarted["changes"][0]["time"] > found["changes"][0]["time"]
    sizes = [
        each["cpus"] for each in restarted["pools"] if (each["kind"], each["node"]) == ("LS", 0)
    ]
    assert sizes[-2:] == [1, 2]


def test_drift_that_the_agent_corrected_is_shown(node: ServedNode) -> None:
    node.pod("web", "LS")
    node.reconcile()
    node.pod("own", "LSE", "1")
    node.reconcile()
    group = node.world.cpuset / "kubepods/burstable/podweb/c-web-main/cpuset.cpus"
    assert group.read_text().strip() == "0,2-3"
    group.write_text("0-3\n")
    node.reconcile()
    assert group.read_text().strip() == "0,2-3"
    (found,) = values(node, "history")["drift"]
    assert (found["kind"], found["pod"]) == ("Drift", "ns/web")
    assert "another process had set it to 0-3" in found["text"]


def test_without_the_audit_trail_only_the_history_is_empty(node: ServedNode) -> None:
    node.pod("web", "LS")
    node.reconcile()
    node.trail.close()
    shutil.rmtree(node.world.state / "audit")
    assert values(node, "history")["changes"] == []
    assert [each["title"] for each in values(node, "state")["pods"]] == ["ns/web"]
    assert values(node, "load")["problem"] == ""


def test_the_page_has_the_reason_of_an_agent_that_is_not_ready(node: ServedNode) -> None:
    node.reconcile()
    node.problem = "the runtime does not answer"
    assert values(node, "load")["problem"] == "the runtime does not answer"


def test_the_usage_has_the_last_hour_and_a_revision_each_minute(tmp_path: Path) -> None:
    now = [600.0]
    hour = PastHour(0.0, PastLoad(cpus=(None, 1.5)), {0: PastLoad()}, (), {"u": PastLoad()})
    page = NodePage(
        "n",
        str(tmp_path),
        str(tmp_path),
        lambda: None,
        None,
        lambda: None,
        str,
        lambda: hour,
        lambda: now[0],
    )
    assert json.loads(page.usage()) == {
        "schema_version": 1,
        "hour": {
            "begin": 0.0,
            "machine": {"cpus": [None, 1.5]},
            "numa_nodes": {"0": {}},
            "pools": [],
            "pods": {"u": {}},
            "disturbed": {},
        },
    }
    revisions = []
    for now[0] in (600.0, 659.0, 660.0):
        revisions.append(json.loads(page.load())["usage"])
    assert revisions == [10, 10, 11]


def test_without_samples_there_is_no_usage(node: ServedNode) -> None:
    node.reconcile()
    assert values(node, "load")["usage"] == 0
    assert values(node, "usage") == {"schema_version": 1, "hour": None}
