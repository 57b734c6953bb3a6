"""The strategies of a node by the files of its configuration, and by what the agent kept. The
NodeSLO of a real API server is in tests/integration/test_strategies.py."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agent.kube.auth import FileAccess
from agent.kube.cluster import Cluster
from agent.kube.transport import Transport
from agent.model.node_slo import CpuBurst, NodeSlo
from agent.model.pod.annotations import CPU_BURST
from agent.model.pod.apiobjects import ApiNode, ApiPod, Phase
from agent.node.cluster_view import ClusterState
from agent.node.sources import SourceName, Sources
from agent.node.strategies import StrategiesView
from agent.usage import strategies
from agent.usage.strategies import Strategies

KEY = "cpu-burst-config"
AUTO = Strategies(NodeSlo(cpu_burst_strategy=CpuBurst("auto")), {"cpuBurstStrategy": "NodeSLO"})


class Followed:
    """A view of a folder, and the number of changes that it reported."""

    def __init__(self, tmp_path: Path, cluster: Cluster | None = None) -> None:
        self.changes = 0
        self.sources = Sources()
        self.folder = tmp_path / "slo"
        self.folder.mkdir(exist_ok=True)
        self.path = tmp_path / "strategies.json"
        self.view = StrategiesView(
            cluster, "n", str(self.folder), str(self.path), self.sources, self._changed
        )

    def _changed(self) -> None:
        self.changes += 1

    def write(self, text: str) -> None:
        (self.folder / KEY).write_text(text)

    @property
    def policy(self) -> str:
        return self.view.now().slo.cpu_burst_strategy.policy

    @property
    def problems(self) -> tuple[str, ...]:
        return self.sources.problems.get(SourceName.STRATEGIES, ())


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def pools(policy: str) -> str:
    pool = {"name": "gold", "nodeSelector": {"matchLabels": {"pool": "gold"}}, "policy": policy}
    return json.dumps({"nodeStrategies": [pool]})


def test_the_labels_of_the_node_choose_the_pool(followed: Followed) -> None:
    followed.write(pools("auto"))
    followed.view.step()
    assert (followed.policy, followed.changes) == ("none", 1)
    gold = ApiNode(labels={"pool": "gold"})
    for _ in range(2):
        followed.view.follow(ClusterState(gold))
        assert (followed.policy, followed.changes) == ("auto", 2)
    assert followed.view.now().origins == {"cpuBurstStrategy": "pool gold"}
    assert strategies.read(str(followed.path)) == followed.view.now()
    followed.write(pools("cpuBurstOnly"))
    followed.view.step()
    assert (followed.policy, followed.changes) == ("cpuBurstOnly", 3)


def test_a_bad_file_is_named_and_keeps_the_last_configuration(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.write('{"clusterStrategy": {"policy": "auto"}}')
    followed.view.step()
    followed.write('{"clusterStrategy": {"policy": "all"}}')
    for _ in range(2):
        followed.view.step()
        assert followed.policy == "auto"
        (problem,) = followed.problems
        assert problem.startswith(f"{followed.folder}/{KEY}: Invalid enum value 'all'")
    assert len([message for message in caplog.messages if KEY in message]) == 1
    assert followed.view.now().troubles == (problem,)
    followed.write("{}")
    followed.view.step()
    assert (followed.policy, followed.problems) == ("none", ())


def test_pods_override_and_bad_annotations_are_named(followed: Followed) -> None:
    followed.view.step()
    good, bad = '{"policy": "auto"}', '{"policy": "all"}'
    pods = {
        name: ApiPod(name, "ns", name, "n", Phase.RUNNING, {}, annotations, "burstable", 0)
        for name, annotations in (("a", {CPU_BURST: good}), ("b", {CPU_BURST: bad}), ("c", {}))
    }
    before = followed.changes
    for _ in range(2):
        followed.view.follow(ClusterState(ApiNode(), pods, pods_listed=True))
        assert followed.changes == before + 1
    (title, of_pod) = next(iter(followed.view.now().pods.items()))
    assert (title, of_pod.cpu_burst.policy) == ("ns/a", "auto")
    (problem,) = followed.problems
    assert problem.startswith(f"pod ns/b: annotation {CPU_BURST}: ")
    assert strategies.read(str(followed.path)) == followed.view.now()
    followed.view.follow(ClusterState(ApiNode()))
    assert set(followed.view.now().pods) == {"ns/a"}, "the pods are not known"
    followed.view.follow(ClusterState(ApiNode(), {}, pods_listed=True))
    assert (followed.view.now().pods, followed.problems) == ({}, ())


def test_a_folder_that_cannot_be_read_changes_nothing(followed: Followed) -> None:
    followed.write('{"clusterStrategy": {"policy": "auto"}}')
    followed.view.step()
    followed.folder.rename(followed.folder.with_name("gone"))
    followed.view.step()
    assert followed.policy == "auto"
    (problem,) = followed.problems
    assert str(followed.folder) in problem


def test_the_last_strategies_stay_while_no_server_answers(tmp_path: Path) -> None:
    (tmp_path / "strategies.json").write_bytes(msgspec.json.encode(AUTO))
    nowhere = Transport(FileAccess("http://127.0.0.1:9"))
    again = Followed(tmp_path, Cluster(nowhere, "n"))
    again.write(pools("none"))
    again.view.step()
    again.view.follow(ClusterState(ApiNode()))
    now = again.view.now()
    assert (now.slo, now.origins) == (AUTO.slo, AUTO.origins)
    assert again.problems == now.unread
    assert now.unread[0].startswith("nodeslos: ")


@pytest.mark.parametrize("content", [b"{", b"x" * (17 << 20)])
def test_a_file_that_cannot_be_read_leaves_the_defaults(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "strategies.json").write_bytes(content)
    assert Followed(tmp_path).view.now() == Strategies()
    assert "the last strategies are lost" in caplog.text
