"""The tour of a cluster, with a fake cluster."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from agent.model import audit
from agent.model import snapshot as snapshots
from agent.model.audit import AuditEvent, Record
from agent.model.cpu.cpuset import CpuSet
from demo.cluster import ClusterTour
from tests.builders import machine
from tests.cluster.cluster import HOST, Cluster
from tests.cluster.machine import ProgramError
from tests.demo.decided import SNAPSHOT

CPUSET = "/sys/fs/cgroup/kubepods/burstable/podx/c0ffee/cpuset.cpus.effective"
LATE = audit.stamp(4e9)


class FakeMachine:
    """`files`: texts by path. `ran`: the programs that were run."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.reads = 0
        self.ran: list[tuple[str, ...]] = []

    def read(self, *patterns: str) -> dict[str, str]:
        self.reads += 1
        return {
            path: text
            for path, text in self.files.items()
            if any(fnmatch(path, pattern) for pattern in patterns)
        }

    def run(self, *words: str) -> str:
        self.ran.append(words)
        return ""


class FakeCluster:
    """`phase`: of created pods. `message`: the scheduling failure. `error`: of each creation."""

    def __init__(self) -> None:
        self.machine = FakeMachine()
        files = SimpleNamespace(machine=self.machine, cpuset_files=lambda container: [CPUSET])
        self.nodes = {HOST: files}
        self.pods: dict[str, dict[str, Any]] = {}
        self.phase, self.message, self.error = "Running", "", ""

    def create(self, manifest: dict[str, Any]) -> None:
        if self.error:
            raise ProgramError(1, ["kubectl"], self.error)
        self.pods[manifest["metadata"]["name"]] = {
            **manifest,
            "status": {
                "phase": self.phase,
                "containerStatuses": [{"containerID": "containerd://c0ffee"}],
            },
        }

    def delete_pod(self, name: str) -> None:
        del self.pods[name]

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        return self.pods.get(name)

    def allocated(self, name: str) -> CpuSet:
        return CpuSet([3]) if name in ("lse", "lsr") else CpuSet()

    def unschedulable_message(self, name: str) -> str:
        return self.message


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def tour(cluster: FakeCluster) -> ClusterTour:
    tour = ClusterTour(cast(Cluster, cluster), machine())
    tour.close()
    return tour


def texts(tour: ClusterTour) -> list[str]:
    return [each[10:] for each in tour.event_lines()]


def test_the_scheduler_chooses_the_cpus(tour: ClusterTour, cluster: FakeCluster) -> None:
    assert tour.create_pod("LSE")
    pod = cluster.pods["lse"]
    assert pod["spec"]["schedulerName"] == "topolet-scheduler"
    assert texts(tour) == [
        "LSE pod default/lse is created; it requests a CPU of its own",
        f"topolet-scheduler chose {HOST} and CPUs 3 for default/lse",
    ]
    tour.delete_pod("LSE")
    assert not cluster.pods


def test_an_unschedulable_pod_has_the_reason_of_the_scheduler(
    tour: ClusterTour, cluster: FakeCluster
) -> None:
    cluster.phase, cluster.message = "Pending", "not enough free CPUs"
    assert tour.create_pod("LSR"), "the pod exists and can be deleted"
    assert texts(tour)[-1] == "default/lsr waits: not enough free CPUs"


def test_a_pod_that_the_api_server_refuses_does_not_exist(
    tour: ClusterTour, cluster: FakeCluster
) -> None:
    cluster.error = "forbidden: no room"
    assert not tour.create_pod("BE")
    assert texts(tour)[-1] == "forbidden: no room"


def test_only_the_agent_process_is_killed(tour: ClusterTour, cluster: FakeCluster) -> None:
    tour.kill_agent()
    assert texts(tour) == ["no agent runs"]
    cluster.machine.files = {
        "/proc/7/cmdline": "python\0-m\0agent\0proxy\0",
        "/proc/8/cmdline": "python\0topolet\0agent\0--kubelet-configz=x\0",
    }
    tour.kill_agent()
    assert cluster.machine.ran == [("kill", "-9", "8")]


def test_drift_is_written_to_the_pods_own_cpuset(tour: ClusterTour, cluster: FakeCluster) -> None:
    tour.drift()
    assert "could change" in texts(tour)[-1]
    tour.create_pod("LS")
    for current, changed in (("1-3", "0-3"), ("0-3", "0")):
        cluster.machine.files[CPUSET] = f"{current}\n"
        tour.drift()
        *_, value, path = cluster.machine.ran[-1]
        assert (value, path) == (changed, CPUSET.removesuffix(".effective"))


def test_decisions_and_records_of_the_agent_are_read_once_a_second(
    tour: ClusterTour, cluster: FakeCluster
) -> None:
    record = Record(1, LATE, "agent", AuditEvent.CPUS_ASSIGNED, "default", "lse", after="3")
    other = msgspec.structs.replace(record, namespace="topolet-system", pod="agent-1")
    old = json.dumps({"version": 1, "time": "2020-01-01T00:00:00Z"})
    cluster.machine.files = {
        "/run/topolet/snapshot.json": snapshots.encode(SNAPSHOT).decode(),
        "/run/topolet/audit/agent.1.jsonl": (audit.encode(record) + audit.encode(other)).decode()
        + old
        + "\ntorn",
    }
    assert tour.decisions() == SNAPSHOT
    assert texts(tour) == ["default/lse: the pod owns CPUs 3."]
    assert cluster.machine.reads == 1


def test_without_an_agent_there_are_no_decisions(tour: ClusterTour) -> None:
    assert tour.decisions() is None
    assert list(tour.records()) == []
