import logging

import pytest

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.kube.events import Regarding
from agent.model.apiobjects import ApiPod, Phase
from agent.model.cpu.cpuset import CpuSet
from agent.node.change_log import (
    AGAIN_SECONDS,
    INVALID_LABEL,
    INVALID_NODE,
    ChangeRecorder,
    NodeFaults,
    PodEvents,
)
from agent.telemetry.metrics import AgentMetrics
from tests.builders import machine, pod
from tests.node.world import Recorded


def test_container_that_stays_without_a_cgroup_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = AgentMetrics()
    witness = ChangeRecorder(metrics)

    def logged(titles: dict[str, str], now: float) -> tuple[int, bool]:
        """The number of lines that this pass logs, and whether the metric counts a container."""
        caplog.clear()
        witness.without_cgroup(titles, now)
        lines = [each for each in caplog.records if each.levelno == logging.ERROR]
        return len(lines), "topolet_unplaced_containers 1.0" in metrics.render()

    assert logged({"a": "x main"}, 10.0) == (0, False)
    assert logged({"a": "x main"}, 10.5) == (0, False)
    assert logged({}, 10.6) == (0, False)
    assert logged({"a": "x main"}, 11.5) == (0, False)
    assert logged({"a": "x main"}, 12.5) == (1, True)
    assert logged({"a": "x main"}, 13.0) == (0, True)
    assert logged({}, 13.5) == (0, False)


def test_owner_of_an_offline_cpu_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = AgentMetrics()
    witness = ChangeRecorder(metrics)
    owner = pod("a", "LSE", "1-2")
    for offline in ("2", "2", ""):
        topology = machine(offline=offline)
        decision = decide(topology, (owner,), KubeletCpus(), {"a": CpuSet([1, 2])}, {})
        witness.export(decision)
        witness.decided((owner,), decision, decision.owners, {})
        assert ('topolet_owned_cpus_offline{pod="ns/a"} 1.0' in metrics.render()) == bool(offline)
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors == ["pod ns/a: CPUs 2 of its own are offline"]


def test_owner_without_online_cpus_is_logged_with_the_consequence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = AgentMetrics()
    pods = pod("a", "LSE", "1-2"), pod("b")
    decision = decide(machine(offline="1-2"), pods, KubeletCpus(), {"a": CpuSet([1, 2])}, {})
    recorder = ChangeRecorder(metrics)
    recorder.export(decision)
    recorder.decided(pods, decision, decision.owners, {})
    assert 'topolet_owned_cpus_offline{pod="ns/a"} 2.0' in metrics.render()
    logged = "\n".join(each.getMessage() for each in caplog.records)
    assert "pod ns/a: CPUs 1-2 of its own are offline" in logged
    assert "pod ns/a keeps the pool" in logged


def test_faults_of_the_node_are_events_again_while_they_last() -> None:
    recorded, now = Recorded(), [0.0]
    events = PodEvents(recorded, lambda: now[0])
    about = Regarding("", "n", "uid-n", "Node")
    for now[0], faults, count in (
        (0.0, ["label a: x"], 1),
        (1.0, ["label a: x"], 1),
        (2.0, ["label a: x", "label b: y"], 2),
        (AGAIN_SECONDS, ["label a: x"], 3),
        (AGAIN_SECONDS + 1, [], 3),
        (AGAIN_SECONDS + 2, ["label a: x"], 4),
    ):
        events.record((), (), {}, node=NodeFaults("n", "uid-n", faults))
        assert len(recorded.events) == count
    assert recorded.events[:2] == [
        (about, INVALID_NODE, "label a: x"),
        (about, INVALID_NODE, "label b: y"),
    ]


def test_faults_of_labels_are_events_of_pods_that_the_api_has() -> None:
    recorded = Recorded()
    known = {"a": ApiPod("a", "ns", "p", "n", Phase.RUNNING, {}, {}, "guaranteed", 1)}
    PodEvents(recorded).record((), (), known, [("a", "label q: 'LSX'"), ("gone", "label q: 'x'")])
    assert recorded.events == [(Regarding("ns", "p", "a"), INVALID_LABEL, "label q: 'LSX'")]
