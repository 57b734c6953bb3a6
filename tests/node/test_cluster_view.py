from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.kube.store import EmbeddedStore
from agent.model.apiobjects import Phase
from agent.model.pod.pods import ANNOTATIONS
from agent.model.pod.qos import QOS_LABEL
from agent.node.cluster_view import ClusterWatches
from tests.waiting import eventually


class Heard:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def assignments(tmp_path: Path, heard: Heard) -> Iterator[ClusterWatches]:
    it = ClusterWatches(EmbeddedStore(str(tmp_path), period_seconds=0.01), "n", heard)
    yield it
    it.stop()
    assert not [each for each in threading.enumerate() if "watch" in each.name]


def put(folder: Path, name: str, status: Any = None, **metadata: Any) -> Path:
    path = folder / "pod" / "ns" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": name, **metadata},
        "spec": {"nodeName": "n"},
        "status": status or {"phase": "Running"},
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(yaml.safe_dump(body))
    fresh.replace(path)
    return path


def settled(assignments: ClusterWatches, check: Callable[[], bool]) -> None:
    eventually("it is reported", check)


def test_pods_are_unknown_before_the_start(assignments: ClusterWatches, heard: Heard) -> None:
    assert assignments.now().pods_listed is False
    assignments.start()
    assert assignments.now().pods_listed is True, "a folder is read at once"
    assert assignments.now().node is None
    assert heard.times == 1, "an empty list is a change"


def test_pods_and_node_are_followed(
    tmp_path: Path, assignments: ClusterWatches, heard: Heard
) -> None:
    path = put(tmp_path, "a")
    store = EmbeddedStore(str(tmp_path))
    store.apply({"kind": "Node", "metadata": {"name": "n", "uid": "u", "labels": {"x": "1"}}})
    assignments.start()
    assert assignments.now().pods["a"].phase is Phase.RUNNING
    node = assignments.now().node
    assert node is not None
    assert (node.uid, node.labels) == ("u", {"x": "1"})
    times = heard.times
    put(tmp_path, "a", status={"phase": "Failed", "message": "why"})
    settled(assignments, lambda: assignments.now().pods["a"].phase is Phase.FAILED)
    eventually("the agent is notified", lambda: heard.times == times + 1)
    path.unlink()
    settled(assignments, lambda: not assignments.now().pods)


def test_of_pods_that_have_ended_only_the_name_is_kept(
    tmp_path: Path, assignments: ClusterWatches
) -> None:
    """A tenant names the node in any number of pods, which its kubelet ends at once."""
    for name, phase in (("a", "Running"), ("b", "Failed"), ("c", "Succeeded")):
        put(
            tmp_path,
            name,
            labels={QOS_LABEL: "LSE"},
            annotations=dict.fromkeys(ANNOTATIONS, "x" * 1_000),
            status={"phase": phase},
        )
    assignments.start()
    pods = assignments.now().pods
    assert pods.keys() == {"a", "b", "c"}
    assert (len(pods["a"].annotations), len(pods["a"].labels)) == (len(ANNOTATIONS), 1)
    for name in "bc":
        assert pods[name].terminal
        assert (pods[name].annotations, pods[name].labels, pods[name].containers) == ({}, {}, ())


def test_changes_of_unused_fields_do_not_wake_the_agent(
    tmp_path: Path, assignments: ClusterWatches, heard: Heard
) -> None:
    put(tmp_path, "a")
    assignments.start()
    times = heard.times
    put(tmp_path, "a", status={"phase": "Running", "podIP": "10.0.0.1"})
    put(tmp_path, "b")
    settled(assignments, lambda: "b" in assignments.now().pods)
    eventually("the agent is notified", lambda: heard.times > times)
    assert heard.times == times + 1


def test_an_invalid_pod_keeps_its_last_valid_state(
    tmp_path: Path, assignments: ClusterWatches, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a", labels={QOS_LABEL: "LSR"})
    assignments.start()
    put(tmp_path, "a", labels={QOS_LABEL: "BE"}, creationTimestamp="yesterday")
    eventually("it is reported", lambda: "'yesterday' is not a time" in caplog.text)
    assert assignments.now().pods["a"].labels == {QOS_LABEL: "LSR"}
    assert "Pod ns/a: metadata.creationTimestamp" in caplog.text


def test_another_pod_with_the_same_name_replaces_the_first(
    tmp_path: Path, assignments: ClusterWatches
) -> None:
    put(tmp_path, "a", uid="1")
    assignments.start()
    put(tmp_path, "a", uid="2")
    settled(assignments, lambda: list(assignments.now().pods) == ["2"])


def test_a_failure_is_reported_and_changes_nothing(
    tmp_path: Path, assignments: ClusterWatches
) -> None:
    path = put(tmp_path, "a")
    assignments.start()
    path.write_text("{")
    eventually(
        "the failure is reported",
        lambda: any("Pod ns/a" in each for each in assignments.problems()),
    )
    assert list(assignments.now().pods) == ["a"]


def test_age_is_since_the_last_read_of_the_folder(
    tmp_path: Path, assignments: ClusterWatches
) -> None:
    path = put(tmp_path, "a")
    assignments.start()
    assert assignments.ages_seconds().keys() == {"pods", "nodes"}
    path.write_text("{")

    def pods_are_older_seconds() -> float:
        ages = assignments.ages_seconds()
        return ages["pods"] - ages["nodes"]

    eventually("pods grow old, nodes do not", lambda: pods_are_older_seconds() > 2)
