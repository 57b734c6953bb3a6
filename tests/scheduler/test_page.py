"""The values of the scheduler's page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.http.requests import BadRequestError, Reply
from agent.scheduler.page import MAX_DECISIONS, MAX_NODES, MAX_PODS
from tests.fixtures.fleet import carder, owner, plain
from tests.scheduler import clusters
from tests.scheduler.page_scene import HOLDER, TOO_LARGE, PageScene


def ask(scene: PageScene, **question: Any) -> dict[str, Any]:
    """The tables, when all nodes are read."""
    body = json.dumps({"lease_holder": HOLDER, **question}).encode()
    found = read(scene.page.state(body))
    while found.get("reading"):
        found = read(scene.page.state(body))
    return found


def detail(scene: PageScene, **question: Any) -> dict[str, Any]:
    return read(scene.page.detail(json.dumps({"lease_holder": HOLDER, **question}).encode()))


def read(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.body)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [each["name"] for each in found["nodes"]]


def test_a_viewer_names_the_holder_of_the_lease() -> None:
    scene = PageScene(1)
    for body in (b"{}", b'{"lease_holder": "another"}'):
        assert scene.page.state(body).status == 403
        assert scene.page.detail(body).status == 403
    assert read(PageScene(1, holder="").page.state(b"{}"))["time"]


def test_a_process_that_does_not_lead_gives_the_reason() -> None:
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
        (b'{"search": 1}', r"\$\.search"),
        (b'{"range": {"column": "name"}}', r"\$\.range"),
        (b'{"unknown": 1}', "unknown"),
    ],
)
def test_a_question_that_cannot_be_read_names_the_field(body: bytes, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        PageScene(1).page.state(body)


def test_nodes_are_sorted_filtered_and_cut_here() -> None:
    scene = PageScene(60)
    assert clusters.reserve(scene.cluster, owner(3, 2), "node-00007", "p")
    first = ask(scene, sort="name", descending=False)
    assert names(first) == scene.names[:MAX_NODES]
    assert names(ask(scene, sort="name", descending=False, offset=50)) == scene.names[50:]
    assert first["matching"] == first["totals"]["nodes"] == 60
    assert names(ask(scene, sort="lost_cpus"))[0] == "node-00007"
    assert names(ask(scene, kind="losing")) == ["node-00007"]
    found = ask(scene, kind="gpus", sort="name", descending=False)
    assert names(found) == scene.names[4::5]
    assert found["charts"]["free_gpus"] == [[0, 1, 0], [1, 2, 0], [2, 4, 0], [4, 8, 0], [8, 16, 12]]
    within = {"column": "free_gpus", "low": 8, "high": 16}
    assert ask(scene, range=within)["matching"] == 12
    assert names(ask(scene, search="00007")) == ["node-00007"]
    assert ask(scene, search="h100")["matching"] == 12


def test_a_search_finds_the_state_of_a_node_in_any_case() -> None:
    scene = PageScene(3)
    scene.cluster.lock_node("node-00001", "RebindResource mend moves pods of the node")
    for search in ("RebindResource", "rebindresource"):
        assert names(ask(scene, search=search)) == ["node-00001"]


def test_nodes_of_equal_rank_are_in_the_order_of_their_names() -> None:
    scene = PageScene(40)
    ranked = names(ask(scene, sort="pods"))
    assert ranked == scene.names[:MAX_NODES]


def test_totals_are_of_all_nodes() -> None:
    scene = PageScene(5)
    assert clusters.reserve(scene.cluster, owner(4, 2), "node-00000", "p")
    totals = ask(scene, search="no such node")["totals"]
    assert (totals["nodes"], totals["gpus"], totals["free_gpus"]) == (5, 8, 8)
    assert totals["cores"] - totals["free_cores"] == 2


def test_what_did_not_change_is_not_sent_again() -> None:
    scene = PageScene(3)
    found = ask(scene)
    again = ask(scene, revision=found["revision"])
    assert again == {"same": True, "time": again["time"]}
    assert scene.place(owner(2, 2), "p")
    assert ask(scene, revision=found["revision"])["decided"] == 1


def test_pods_without_a_node_have_their_reasons() -> None:
    scene = PageScene(5)
    assert not scene.place(TOO_LARGE, "huge")
    found = ask(scene)
    (pod,) = found["pods"]
    assert (pod["title"], found["waiting"]) == ("default/huge", 1)
    assert sum(count for _, count in pod["reasons"]) == 5
    assert all("not enough" in text or "not have enough" in text for text, _ in pod["reasons"])
    assert pod["requests"]["cpu"] == 400_000
    assert ask(scene, search="other")["waiting"] == 0


def test_pages_of_pods() -> None:
    scene = PageScene(1)
    for number in range(MAX_PODS + 3):
        assert not scene.place(TOO_LARGE, f"huge-{number}")
    found = ask(scene)
    assert (len(found["pods"]), found["waiting"]) == (MAX_PODS, MAX_PODS + 3)
    assert len(ask(scene, pods_offset=MAX_PODS)["pods"]) == 3


def test_a_waiting_pod_is_explained_when_somebody_asks() -> None:
    scene = PageScene(3)
    assert not scene.place(carder(9), "train")
    plain_ = detail(scene, pod="default/train")
    assert plain_["pod"]["title"] == "default/train"
    assert "explanation" not in plain_
    told = detail(scene, pod="default/train", explain=True)["explanation"]
    assert told["note"].startswith("No room on 3 nodes.")
    assert sum(each["nodes"] for each in told["causes"]) == 3
    assert told["causes"][0]["example"] in scene.names
    assert told["left_out"] == 0


def test_decisions_tell_how_they_came_about() -> None:
    scene = PageScene(3)
    node = scene.place(owner(4, 2), "web")
    scene.bindings.error = "the API server does not answer"
    scene.place(owner(2, 2), "db")
    failed, bound = ask(scene)["decisions"]
    assert (failed["title"], failed["error"]) == ("default/db", "the API server does not answer")
    assert (bound["title"], bound["node"], bound["error"]) == ("default/web", node, "")
    assert bound["cpus"]
    told = detail(scene, decision=bound["number"])
    assert told["decision"] == bound
    assert told["requests"]["cpu"] == 4000
    assert any(line.startswith("policies in force") for line in told["lines"])
    assert detail(scene, pod="default/web")["decision"] == bound


def test_the_newest_decisions_are_sent() -> None:
    scene = PageScene(2)
    for number in range(MAX_DECISIONS + 2):
        assert scene.place(plain("1m", "1Mi"), f"p-{number}")
    found = ask(scene)
    assert len(found["decisions"]) == MAX_DECISIONS
    assert found["decisions"][0]["title"] == f"default/p-{MAX_DECISIONS + 1}"


def test_a_node_has_its_numa_nodes_cards_and_holders() -> None:
    scene = PageScene(5)
    ask(scene)
    assert clusters.reserve(scene.cluster, carder(2, 8), "node-00004", "train")
    assert clusters.reserve(scene.cluster, plain("1", "1Gi"), "node-00004", "web")
    ask(scene)
    found = detail(scene, node="node-00004")
    assert [each["cpus"] for each in found["numa_nodes"]] == [48, 48]
    assert sum(each["free_cpus"] for each in found["numa_nodes"]) == 88
    assert sorted(each["free"] for each in found["gpus"]) == [0, 0, 1, 1, 1, 1, 1, 1]
    (pod,) = found["pods"]
    assert (pod["title"], len(pod["devices"]["gpu"])) == ("default/train", 2)
    assert found["node"]["pods"] == 3


@pytest.mark.parametrize(
    "question", [{"node": "gone"}, {"pod": "default/gone"}, {"decision": 7}, {}]
)
def test_what_is_not_there_has_no_details(question: dict[str, Any]) -> None:
    scene = PageScene(1)
    body = json.dumps({"lease_holder": HOLDER, **question}).encode()
    assert scene.page.detail(body).status == 404
