from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cri.client import Cri
from agent.host.files import boot_id
from agent.model import snapshot as snapshots
from agent.model.audit import AuditEvent, Record
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.node.sampler import NodeSampler, PodReader
from agent.telemetry.audit import Trail
from agent.view.top.values import Usage
from tests.faults.node import SimulatedNode, large_machine
from tests.fixtures import trees
from tests.view.top import nodes

NOW = 1_700_000_000.0
SHAPE = (2, 1, 1, 2, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trees.write(str(tmp_path / "root"), trees.machine(*SHAPE))
    stat(tmp_path, {0: (0, 0), 1: (0, 0), 2: (0, 0), 3: (0, 0)})
    (tmp_path / "state").mkdir()
    return tmp_path


def sampler(folder: Path) -> NodeSampler:
    return NodeSampler("n", str(folder / "root"), str(folder / "state"), lambda: NOW)


def stat(folder: Path, times: dict[int, tuple[int, int]]) -> None:
    """Writes the busy and idle ticks of each CPU."""
    lines = [f"cpu{cpu} {busy} 0 0 {idle}" for cpu, (busy, idle) in times.items()]
    (folder / "root" / "proc" / "stat").write_text("\n".join(lines) + "\n")


def decide(folder: Path, shared: int = 2) -> None:
    text = snapshots.encode(nodes.snapshot(nodes.machine(*SHAPE), shared))
    temporary = folder / "state" / "new"
    temporary.write_bytes(text.replace(b'"boot_id":"b"', f'"boot_id":"{boot_id()}"'.encode()))
    os.replace(temporary, folder / "state" / "snapshot.json")


@pytest.fixture
def notification_socket(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notification_socket:
        notification_socket.bind(str(folder / "state" / "notifications.sock"))
        yield notification_socket


def test_loads_between_two_reads(folder: Path) -> None:
    source = sampler(folder)
    assert source.observe().loads == bytes([255] * 4)
    stat(folder, {0: (50, 50), 1: (0, 100), 2: (100, 0), 3: (0, 0)})
    observed = source.observe()
    assert observed.loads == bytes([50, 0, 100, 255])
    assert observed.load_by_cpu == {0: 0.5, 1: 0.0, 2: 1.0, 3: None}


def test_decisions_of_a_running_agent(folder: Path, notification_socket: socket.socket) -> None:
    source = sampler(folder)
    assert source.observe().node.pods == ()
    decide(folder)
    observed = source.observe()
    assert observed.node.pods[0].title == "ml/train"
    assert observed.problems == ()
    assert observed.decided_seconds is not None
    assert source.generation == 7
    decide(folder, shared=4)
    assert len(source.observe().node.pods) == 6
    assert source.observe().node is source.observe().node


def test_an_agent_that_ended(folder: Path, notification_socket: socket.socket) -> None:
    decide(folder)
    source = sampler(folder)
    notification_socket.close()
    assert source.observe().problems == ("the agent does not run: these are its last decisions",)


def test_no_agent(folder: Path) -> None:
    observed = sampler(folder).observe()
    assert observed.problems == (f"no agent uses the state folder {folder}/state",)
    assert len(observed.node.cpus) == 4


def test_decisions_that_can_not_be_read(folder: Path, notification_socket: socket.socket) -> None:
    """The last decisions that were read stay."""
    decide(folder)
    source = sampler(folder)
    source.observe()
    (folder / "state" / "snapshot.json").write_bytes(b"{")
    observed = source.observe()
    assert "the agent's decisions can't be read" in observed.problems[0]
    assert len(observed.node.pods) == 4
    decide(folder)
    assert source.observe().problems == ()


def test_a_cpu_goes_offline(folder: Path) -> None:
    source = sampler(folder)
    source.observe()
    shutil.rmtree(folder / "root")
    files = trees.offline(trees.machine(*SHAPE), CpuSet((3,)))
    trees.write(str(folder / "root"), files)
    stat(folder, {0: (0, 0)})
    assert [cpu.id for cpu in source.observe().node.cpus] == [0, 1, 2]


def test_changes_of_the_trail(folder: Path) -> None:
    source = sampler(folder)
    assert source.observe().recent.changes == ()
    trail = Trail(str(folder / "state"), "agent", 1 << 20, lambda: NOW - 5)
    pod = {"namespace": "ml", "pod": "train", "uid": "t"}
    trail.append([Record(event=AuditEvent.CPUS_ASSIGNED, after="1-2", **pod)])
    assert [each.pod for each in source.observe().recent.changes] == ["ml/train"]
    pool = Record(
        event=AuditEvent.POOL_CHANGED, field="ls-pool", numa_node=0, before="0-1", after="0"
    )
    trail.append([pool])
    assert [each.cpus for each in source.observe().recent.pools] == [2, 1]


def test_samples_are_kept(folder: Path) -> None:
    decide(folder)
    source = sampler(folder)
    source.observe()
    stat(folder, {cpu: (cpu * 25, 100 - cpu * 25) for cpu in range(4)})
    first, second = source.observe().samples
    assert first.counts == second.counts == {"own": 3, "LS": 1, "BE": 2}
    assert first.loads["own"] is None
    assert second.loads == {"own": 0.5, "LS": 0.0, "BE": 0.375}


@pytest.fixture(params=[1, 2])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SimulatedNode]:
    node = large_machine(tmp_path, request.param)
    yield node
    node.close()


@pytest.fixture
def reader(node: SimulatedNode) -> Iterator[PodReader]:
    top = Path(node.cgroups.root)
    if (top / "cpuset").is_dir():
        for controller, file in (("cpu", "cpu.shares"), ("memory", "memory.limit_in_bytes")):
            (top / controller).mkdir()
            (top / controller / file).touch()
    else:
        (top / "cgroup.controllers").write_text("cpuset cpu memory\n")
    cri = Cri(str(node.socket_path), 5.0)
    yield PodReader(cri, str(node.cgroups.root), "/proc")
    cri.close()


def folder_of(node: SimulatedNode, controller: str, group: str) -> Path:
    top = Path(node.cgroups.root)
    return (top / controller if (top / "cpuset").is_dir() else top) / group.lstrip("/")


def write_usage(node: SimulatedNode, group: str, cpu_seconds: float, memory_bytes: int) -> None:
    """Writes the counters of the kernel, in the files of cgroup v1 and v2."""
    cpu, memory = (folder_of(node, each, group) for each in ("cpu", "memory"))
    for each in (cpu, memory):
        each.mkdir(parents=True, exist_ok=True)
    (cpu / "cpu.stat").write_text(f"usage_usec {cpu_seconds * 1e6:.0f}\nuser_usec 0\n")
    (cpu / "cpuacct.usage").write_text(f"{cpu_seconds * 1e9:.0f}\n")
    (memory / "memory.current").write_text(f"{memory_bytes}\n")
    (memory / "memory.usage_in_bytes").write_text(f"{memory_bytes}\n")


def test_usage_of_pods(node: SimulatedNode, reader: PodReader) -> None:
    pod = node.add_pod("LSE", "1-2")
    node.create_container(pod, start=True)
    assert reader.usage() == {}
    reader.observe()
    write_usage(node, pod.parent, 10.0, 1 << 20)
    assert reader.usage()[pod.uid] == Usage(None, 1 << 20)
    write_usage(node, pod.parent, 11.0, 2 << 20)
    found = reader.usage()[pod.uid]
    assert found.cpus is not None
    assert found.cpus > 0
    assert found.memory_bytes == 2 << 20


def test_usage_that_can_not_be_read(node: SimulatedNode, reader: PodReader) -> None:
    pod = node.add_pod("LS", "")
    node.create_container(pod, start=True)
    reader.observe()
    write_usage(node, pod.parent, 1.0, 1)
    (folder_of(node, "cpu", pod.parent) / "cpu.stat").write_text("nonsense\n")
    (folder_of(node, "cpu", pod.parent) / "cpuacct.usage").write_text("nonsense\n")
    (folder_of(node, "memory", pod.parent) / "memory.current").unlink()
    (folder_of(node, "memory", pod.parent) / "memory.usage_in_bytes").unlink()
    assert reader.usage()[pod.uid] == Usage(None, None)


def test_an_opened_pod(node: SimulatedNode, reader: PodReader) -> None:
    pod = node.add_pod("LSE", "1-2")
    node.create_container(pod, start=True)
    group = pod.containers[0].group
    assert group is not None
    node.cgroups.set(group, CpuSet((1, 2)))
    opened = reader.opened(pod.uid)
    assert opened.problem == ""
    assert opened.annotations[RESOURCE_STATUS] == '{"cpuset": "1-2"}'
    assert [state for _, state in opened.containers] == ["running"]
    of_pod, of_container = opened.groups
    assert (of_pod.of, of_pod.path) == ("", pod.parent)
    assert of_container.path == group
    assert of_container.files["cpuset.cpus"] == "1-2"


def test_a_pod_that_the_runtime_does_not_list(reader: PodReader) -> None:
    assert reader.opened("deleted").problem == "the runtime does not list the pod"


def test_a_runtime_that_does_not_answer(node: SimulatedNode, reader: PodReader) -> None:
    node.stop_runtime()
    assert "the runtime does not answer" in reader.opened("u").problem


@pytest.mark.skipif(os.getuid() != 0, reason="it becomes another user")
def test_a_user_without_permissions(folder: Path) -> None:
    """The problem names the unreadable files, and not an agent that does not run."""
    with (
        tempfile.TemporaryDirectory() as public,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notification_socket,
    ):
        os.chmod(public, 0o755)
        shutil.move(folder / "root", public)
        shutil.move(folder / "state", public)
        decide(Path(public))
        notification_socket.bind(f"{public}/state/notifications.sock")
        os.chmod(f"{public}/state", 0o700)
        os.seteuid(65_534)
        try:
            (problem,) = sampler(Path(public)).observe().problems
        finally:
            os.seteuid(0)
    assert "the agent's decisions can't be read" in problem
    assert "Permission denied" in problem
