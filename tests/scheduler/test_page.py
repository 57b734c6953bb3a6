"""The data of the scheduler's page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.http.requests import BadRequestError, Reply
from agent.scheduler.page import MAX_DECISIONS, MAX_NODES, MAX_PODS
from tests.fixtures.fleet import gpu_pod, guaranteed_pod, owner
from tests.scheduler import clusters
from tests.scheduler.page_scene import HOLDER, TOO_LARGE, PageScene


def state(scene: PageScene, **query: Any) -> dict[str, Any]:
    """The tables, once all nodes are read."""
    body = json.dumps({"lease_holder": HOLDER, **query}).encode()
    found = decoded(scene.page.state(body))
    while found.get("reading"):
        found = decoded(scene.page.state(body))
    return found


def detail(scene: PageScene, **query: Any) -> dict[str, Any]:
    return decoded(scene.page.detail(json.dumps({"lease_holder": HOLDER, **query}).encode()))


def decoded(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.body)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [each["name"] for each in found["nodes"]]


def test_a_request_must_name_the_holder_of_the_lease() -> None:
    scene = PageScene(1)
    for body in (b"{}", b'{"lease_holder": "another"}'):
        assert scene.page.state(body).status == 403
        assert scene.page.detail(body).status == 403
    assert decoded(PageScene(1, holder="").page.state(b"{}"))["time"]


def test_a_process_that_is_not_the_leader_returns_the_reason() -> None:
    scene = PageScene(1)
    scene.unavailable = "the leader is another"
    reply = scene.page.state(json.dumps({"lease_holder": HOLDER}).encode())
    assert (reply.status, reply.body) == (503, b"the leader is another\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "page: "),
        (b'{"sort": "password"}', r"\$\.sort"),
        (b'{"offset": -1}', r"\$\.offset"),
        (b'{"range": {"column": "name"}}', r"\$\.range"),
        (b'{"unknown": 1}', "unknown"),
    ],
)
def test_the_error_for_an_invalid_request_names_the_field(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        PageScene(1).page.state(body)


def test_the_server_sorts_filters_and_pages_the_nodes() -> None:
    scene = PageScene(60)
    assert clusters.reserve(scene.cluster, owner(3, 2), "node-00007", "p")
    first = state(scene, sort="name", descending=False)
    assert names(first) == scene.names[:MAX_NODES]
    assert names(state(scene, sort="name", descending=False, offset=50)) == scene.names[50:]
    assert first["matching"] == first["totals"]["nodes"] == 60
    assert names(state(scene, sort="lost_cpus"))[0] == "node-00007"
    assert names(state(scene, kind="losing")) == ["node-00007"]
    found = state(scene, kind="gpus", sort="name", descending=False)
    assert names(found) == scene.names[4::5]
    assert found["charts"]["free_gpus"] == [[0, 1, 0], [1, 2, 0], [2, 4, 0], [4, 8, 0], [8, 16, 12]]
    within = {"column": "free_gpus", "low": 8, "high": 16}
    assert state(scene, range=within)["matching"] == 12
    assert names(state(scene, search="00007")) == ["node-00007"]
    assert state(scene, search="h100")["matching"] == 12


def test_a_search_finds_the_state_of_a_node_without_regard_to_case() -> None:
    scene = PageScene(3)
    scene.cluster.lock_node("node-00001", "RebindResource mend moves pods of the node")
    for search in ("RebindResource", "rebindresource"):
        assert names(state(scene, search=search)) == ["node-00001"]


def test_nodes_with_equal_values_are_sorted_by_name() -> None:
    scene = PageScene(40)
    ranked = names(state(scene, sort="pods"))
    assert ranked == scene.names[:MAX_NODES]


def test_the_totals_count_all_nodes_whatever_the_search() -> None:
    scene = PageScene(5)
    assert clusters.reserve(scene.cluster, owner(4, 2), "node-00000", "p")
    totals = state(scene, search="no such node")["totals"]
    assert (totals["nodes"], totals["gpus"], totals["free_gpus"]) == (5, 8, 8)
    assert totals["cores"] - totals["free_cores"] == 2


def test_an_unchanged_state_is_not_sent_again() -> None:
    scene = PageScene(3)
    found = state(scene)
    again = state(scene, revision=found["revision"])
    assert again == {"same": True, "time": again["time"]}
    assert scene.place(owner(2, 2), "p")
    assert state(scene, revision=found["revision"])["decided"] == 1


def test_unschedulable_pods_have_their_reasons() -> None:
    scene = PageScene(5)
    assert not scene.place(TOO_LARGE, "huge")
    found = state(scene)
    (pod,) = found["pods"]
    assert (pod["title"], found["waiting"]) == ("default/huge", 1)
    assert sum(count for _, count in pod["reasons"]) == 5
    assert all("not enough" in text or "not have enough" in text for text, _ in pod["reasons"])
    assert pod["requests"]["cpu"] == 400_000
    assert state(scene, search="other")["waiting"] == 0


def test_unschedulable_pods_are_sent_in_pages() -> None:
    scene = PageScene(1)
    for number in range(MAX_PODS + 3):
        assert not scene.place(TOO_LARGE, f"huge-{number}")
    found = state(scene)
    assert (len(found["pods"]), found["waiting"]) == (MAX_PODS, MAX_PODS + 3)
    assert len(state(scene, pods_offset=MAX_PODS)["pods"]) == 3


def test_an_unschedulable_pod_is_explained_on_request() -> None:
    scene = PageScene(3)
    assert not scene.place(gpu_pod(9), "train")
    unexplained = detail(scene, pod="default/train")
    assert unexplained["pod"]["title"] == "default/train"
    assert "explanation" not in unexplained
    explanation = detail(scene, pod="default/train", explain=True)["explanation"]
    assert explanation["note"].startswith("No room on 3 nodes.")
    assert sum(each["nodes"] for each in explanation["causes"]) == 3
    assert explanation["causes"][0]["example"] in scene.names
    assert explanation["left_out"] == 0


def test_decisions_have_their_error_their_requests_and_their_policies() -> None:
    scene = PageScene(3)
    node = scene.place(owner(4, 2), "web")
    scene.bindings.error = "the API server does not answer"
    scene.place(owner(2, 2), "db")
    failed, bound = state(scene)["decisions"]
    assert (failed["title"], failed["error"]) == ("default/db", "the API server does not answer")
    assert (bound["title"], bound["node"], bound["error"]) == ("default/web", node, "")
    assert bound["cpus"]
    details = detail(scene, decision=bound["number"])
    assert details["decision"] == bound
    assert details["requests"]["cpu"] == 4000
    assert any(line.startswith("policies in force") for line in details["lines"])
    assert detail(scene, pod="default/web")["decision"] == bound


def test_the_newest_decisions_are_sent() -> None:
    scene = PageScene(2)
    for number in range(MAX_DECISIONS + 2):
        assert scene.place(guaranteed_pod("1m", "1Mi"), f"p-{number}")
    found = state(scene)
    assert len(found["decisions"]) == MAX_DECISIONS
    assert found["decisions"][0]["title"] == f"default/p-{MAX_DECISIONS + 1}"


def test_the_details_of_a_node_are_its_numa_nodes_gpus_and_pods() -> None:
    scene = PageScene(5)
    state(scene)
    assert clusters.reserve(scene.cluster, gpu_pod(2, 8), "node-00004", "train")
    assert clusters.reserve(scene.cluster, guaranteed_pod("1", "1Gi"), "node-00004", "web")
    state(scene)
    found = detail(scene, node="node-00004")
    assert [each["cpus"] for each in found["numa_nodes"]] == [48, 48]
    assert sum(each["free_cpus"] for each in found["numa_nodes"]) == 88
    assert sorted(each["free"] for each in found["gpus"]) == [0, 0, 1, 1, 1, 1, 1, 1]
    (pod,) = found["pods"]
    assert (pod["title"], len(pod["devices"]["gpu"])) == ("default/train", 2)
    assert found["node"]["pods"] == 3


@pytest.mark.parametrize(
    "query", [{"node": "unknown"}, {"pod": "default/unknown"}, {"decision": 7}, {}]
)
def test_unknown_objects_have_no_details(query: dict[str, Any]) -> None:
    scene = PageScene(1)
    body = json.dumps({"lease_holder": HOLDER, **query}).encode()
    assert scene.page.detail(body).status == 404
