from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.kube.store import EmbeddedStore
from agent.model.pod.apiobjects import Phase
from agent.model.pod.pods import ANNOTATIONS
from agent.model.pod.qos import QOS_LABEL
from agent.node.cluster_view import ClusterWatches
from tests.waiting import eventually


class Notifications:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def notifications() -> Notifications:
    return Notifications()


@pytest.fixture
def watches(tmp_path: Path, notifications: Notifications) -> Iterator[ClusterWatches]:
    watches = ClusterWatches(EmbeddedStore(str(tmp_path), period_seconds=0.01), "n", notifications)
    yield watches
    watches.stop()
    assert not [each for each in threading.enumerate() if "watch" in each.name]


def put(folder: Path, name: str, status: Any = None, **metadata: Any) -> Path:
    path = folder / "pod" / "ns" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": name, **metadata},
        "spec": {"nodeName": "n"},
        "status": status or {"phase": "Running"},
    }
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(body))
    new.replace(path)
    return path


def wait_until(watches: ClusterWatches, check: Callable[[], bool]) -> None:
    eventually("the watch reports the change", check)


def test_pods_are_unknown_before_the_start(
    watches: ClusterWatches, notifications: Notifications
) -> None:
    assert watches.now().pods_listed is False
    watches.start()
    assert watches.now().pods_listed is True, "a folder is read at once"
    assert watches.now().node is None
    assert notifications.count == 1, "an empty list is a change"


def test_pods_and_node_are_followed(
    tmp_path: Path, watches: ClusterWatches, notifications: Notifications
) -> None:
    path = put(tmp_path, "a")
    store = EmbeddedStore(str(tmp_path))
    store.apply({"kind": "Node", "metadata": {"name": "n", "uid": "u", "labels": {"x": "1"}}})
    watches.start()
    assert watches.now().pods["a"].phase is Phase.RUNNING
    node = watches.now().node
    assert node is not None
    assert (node.uid, node.labels) == ("u", {"x": "1"})
    before = notifications.count
    put(tmp_path, "a", status={"phase": "Failed", "message": "why"})
    wait_until(watches, lambda: watches.now().pods["a"].phase is Phase.FAILED)
    eventually("the agent is notified", lambda: notifications.count == before + 1)
    path.unlink()
    wait_until(watches, lambda: not watches.now().pods)


def test_only_the_name_of_an_ended_pod_is_kept(tmp_path: Path, watches: ClusterWatches) -> None:
    """A user may bind any number of pods to the node by name; its kubelet fails them at once."""
    for name, phase in (("a", "Running"), ("b", "Failed"), ("c", "Succeeded")):
        put(
            tmp_path,
            name,
            labels={QOS_LABEL: "LSE"},
            annotations=dict.fromkeys(ANNOTATIONS, "x" * 1_000),
            status={"phase": phase},
        )
    watches.start()
    pods = watches.now().pods
    assert pods.keys() == {"a", "b", "c"}
    assert (len(pods["a"].annotations), len(pods["a"].labels)) == (len(ANNOTATIONS), 1)
    for name in "bc":
        assert pods[name].terminal
        assert (pods[name].annotations, pods[name].labels, pods[name].containers) == ({}, {}, ())


def test_changes_of_unused_fields_do_not_wake_the_agent(
    tmp_path: Path, watches: ClusterWatches, notifications: Notifications
) -> None:
    put(tmp_path, "a")
    watches.start()
    before = notifications.count
    put(tmp_path, "a", status={"phase": "Running", "podIP": "10.0.0.1"})
    put(tmp_path, "b")
    wait_until(watches, lambda: "b" in watches.now().pods)
    eventually("the agent is notified", lambda: notifications.count > before)
    assert notifications.count == before + 1


def test_an_invalid_pod_keeps_its_last_valid_state(
    tmp_path: Path, watches: ClusterWatches, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "a", labels={QOS_LABEL: "LSR"})
    watches.start()
    put(tmp_path, "a", labels={QOS_LABEL: "BE"}, creationTimestamp="yesterday")
    eventually("the error is logged", lambda: "'yesterday' is not a time" in caplog.text)
    assert watches.now().pods["a"].labels == {QOS_LABEL: "LSR"}
    assert "Pod ns/a: metadata.creationTimestamp" in caplog.text


def test_another_pod_with_the_same_name_replaces_the_first(
    tmp_path: Path, watches: ClusterWatches
) -> None:
    put(tmp_path, "a", uid="1")
    watches.start()
    put(tmp_path, "a", uid="2")
    wait_until(watches, lambda: list(watches.now().pods) == ["2"])


def test_a_failure_is_reported_and_changes_nothing(tmp_path: Path, watches: ClusterWatches) -> None:
    path = put(tmp_path, "a")
    watches.start()
    path.write_text("{")
    eventually(
        "the failure is reported",
        lambda: any("Pod ns/a" in each for each in watches.problems()),
    )
    assert list(watches.now().pods) == ["a"]


def test_age_is_since_the_last_read_of_the_folder(tmp_path: Path, watches: ClusterWatches) -> None:
    path = put(tmp_path, "a")
    watches.start()
    assert watches.ages_seconds().keys() == {"pods", "nodes"}
    path.write_text("{")

    def pods_are_older_seconds() -> float:
        ages = watches.ages_seconds()
        return ages["pods"] - ages["nodes"]

    eventually("pods grow old, nodes do not", lambda: pods_are_older_seconds() > 2)
