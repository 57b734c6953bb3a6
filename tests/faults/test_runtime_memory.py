"""The memory of a real agent whose runtime sends valid replies of the largest size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.cri.client import MAX_INFO_BYTES, MAX_ITEMS, MAX_PATH_BYTES, MAX_REPLY_BYTES
from agent.proto import cri_pb2 as pb
from tests.faults.node import SimulatedNode, large_machine
from tests.fixtures.ports import free_port
from tests.integration.harness import page
from tests.waiting import eventually

LIMIT_BYTES = 128 << 20
"""As in deploy/base/daemonset.yaml."""
ROOM_BYTES = 64 << 10
"""For what surrounds a value in a reply."""
CONTAINERS = 8
PATIENCE_SECONDS = 120.0


def _reply(message: bytes) -> bytes:
    return message * ((MAX_REPLY_BYTES - ROOM_BYTES) // len(message))


def _many_sandboxes(node: SimulatedNode) -> None:
    node.runtime.replies["ListPodSandbox"] = _reply(b"\x0a\x00")


def _many_containers(node: SimulatedNode) -> None:
    node.runtime.replies["ListContainers"] = _reply(b"\x0a\x00")


def _many_labels(node: SimulatedNode) -> None:
    """Ten items with the largest number of labels that the agent reads."""
    labels = {f"{number:x}": "" for number in range(130_000)}
    sandboxes = [pb.PodSandbox(id=f"s{number}", labels=labels) for number in range(10)]
    containers = [
        pb.Container(id=f"c{number}", pod_sandbox_id=f"s{number}", labels=labels)
        for number in range(10)
    ]
    node.runtime.replies["ListPodSandbox"] = pb.ListPodSandboxResponse(
        items=sandboxes
    ).SerializeToString()
    node.runtime.replies["ListContainers"] = pb.ListContainersResponse(
        containers=containers
    ).SerializeToString()


def _listed(
    node: SimulatedNode, count: int, name: str, ended: Callable[[int], bool] = lambda number: False
) -> None:
    """Lists `count` containers, each in its own sandbox, with names that end with `name`."""
    sandboxes, containers = pb.ListPodSandboxResponse(), pb.ListContainersResponse()
    for number in range(count):
        text = f"{number:x}{name}"
        pod = pb.PodSandboxMetadata(name=text, uid=text, namespace=text)
        has_ended = ended(number)
        ready = pb.SANDBOX_NOTREADY if has_ended else pb.SANDBOX_READY
        sandboxes.items.add(id=text, metadata=pod, state=ready)
        containers.containers.add(
            id=text,
            pod_sandbox_id=text,
            metadata=pb.ContainerMetadata(name=text),
            state=pb.CONTAINER_EXITED if has_ended else pb.CONTAINER_CREATED,
        )
    node.runtime.replies["ListPodSandbox"] = sandboxes.SerializeToString()
    node.runtime.replies["ListContainers"] = containers.SerializeToString()


def _as_many_as_fit(node: SimulatedNode) -> None:
    """Half of the containers have ended, and half of the sandboxes are not ready."""
    _listed(node, MAX_ITEMS, "a" * 28, ended=lambda number: number % 2 == 1)
    path = "/kubepods/burstable/pod" + "a" * 100
    spec = {"linux": {"cgroupsPath": path}}
    text = json.dumps({"config": {"linux": {"cgroup_parent": path}}, "runtimeSpec": spec})
    for name in ("ContainerStatus", "PodSandboxStatus"):
        node.runtime.replies[name] = _status(text)


def _longest_names(node: SimulatedNode) -> None:
    _listed(node, MAX_ITEMS, "a" * 200)


def _widest_names(node: SimulatedNode) -> None:
    """Python keeps all characters of a text in the size of its widest one."""
    _listed(node, MAX_ITEMS, "\U0001f600" + "a" * 200)


def _longest_paths(node: SimulatedNode) -> None:
    """The longest paths, of the largest number of containers."""
    _listed(node, MAX_ITEMS, "a", ended=lambda number: number % 2 == 1)
    path = "/" + "a" * (MAX_PATH_BYTES - 2)
    cpu = {"cpus": path, "mems": path}
    text = json.dumps(
        {
            "config": {"linux": {"cgroup_parent": path}},
            "runtimeSpec": {"linux": {"cgroupsPath": path, "resources": {"cpu": cpu}}},
        }
    )
    for name in ("ContainerStatus", "PodSandboxStatus"):
        node.runtime.replies[name] = _status(text)


def _status(text: str) -> bytes:
    return pb.ContainerStatusResponse(info={"info": text}).SerializeToString()


def _many_in_a_status(node: SimulatedNode) -> None:
    for name in ("ContainerStatus", "PodSandboxStatus"):
        node.runtime.replies[name] = _reply(b"\x12\x00")


def _list_in_info(item: str, *path: str) -> Callable[[SimulatedNode], None]:
    """The verbose status of each container has one list of the largest size."""

    def attack(node: SimulatedNode) -> None:
        count = (MAX_INFO_BYTES - ROOM_BYTES) // (len(item) + 1)
        text = f"[{','.join([item] * count)}]"
        for key in reversed(path):
            text = f"{json.dumps({key: 0})[:-2]}{text}}}"
        for name in ("ContainerStatus", "PodSandboxStatus"):
            node.runtime.replies[name] = _status(text)

    attack.__name__ = "_".join(path)
    return attack


def _long_text_in_info(*path: str) -> Callable[[SimulatedNode], None]:
    """The verbose status of each container has one text of its largest size."""

    def attack(node: SimulatedNode) -> None:
        value: object = "a" * (MAX_INFO_BYTES - ROOM_BYTES)
        for key in reversed(path):
            value = {key: value}
        for name in ("ContainerStatus", "PodSandboxStatus"):
            node.runtime.replies[name] = _status(json.dumps(value))

    attack.__name__ = "_".join(path)
    return attack


def _longest_info(node: SimulatedNode) -> None:
    for name in ("ContainerStatus", "PodSandboxStatus"):
        node.runtime.replies[name] = _status("a" * (MAX_REPLY_BYTES - ROOM_BYTES))


def _long_variable(node: SimulatedNode) -> None:
    names = ",".join(f"GPU-{number}" + "a" * 1_000 for number in range(3_500))
    text = json.dumps({"runtimeSpec": {"process": {"env": [f"NVIDIA_VISIBLE_DEVICES={names}"]}}})
    node.runtime.replies["ContainerStatus"] = _status(text)


def _many_nodes(node: SimulatedNode) -> None:
    devices = [{"path": f"/dev/{number}{'a' * 100}"} for number in range(30_000)]
    text = json.dumps({"runtimeSpec": {"linux": {"devices": devices}}})
    node.runtime.replies["ContainerStatus"] = _status(text)


def _endless_events(node: SimulatedNode) -> None:
    node.runtime.replies["Version"] = pb.VersionResponse(
        runtime_name="containerd", runtime_version="2.1.0"
    ).SerializeToString()
    node.runtime.event = b"\x0a\x00" * 4_000_000


ATTACKS = (
    _many_sandboxes,
    _many_containers,
    _many_labels,
    _longest_names,
    _widest_names,
    _longest_paths,
    _many_in_a_status,
    _longest_info,
    _list_in_info("{}", "config", "envs"),
    _list_in_info('"a=bcd"', "runtimeSpec", "process", "env"),
    _list_in_info("{}", "runtimeSpec", "mounts"),
    _long_text_in_info("runtimeSpec", "linux", "cgroupsPath"),
    _long_text_in_info("runtimeSpec", "linux", "resources", "cpu", "cpus"),
    _long_text_in_info("config", "linux", "cgroup_parent"),
    _long_text_in_info("config", "annotations", "cdi.k8s.io/a"),
    _long_variable,
    _many_nodes,
    _endless_events,
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    simulated = large_machine(tmp_path, 1)
    for _ in range(CONTAINERS):
        simulated.create_container(simulated.add_pod("LS"), start=True)
    yield simulated
    simulated.close()


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


@pytest.mark.parametrize(
    "attack",
    [
        *(pytest.param(each, id=each.__name__.lstrip("_")) for each in ATTACKS),
        # Two passes request 40,000 statuses.
        pytest.param(_as_many_as_fit, id="as_many_as_fit", marks=pytest.mark.long),
    ],
)
def test_replies_of_a_runtime_do_not_exhaust_the_agents_memory(
    node: SimulatedNode, tmp_path: Path, attack: Callable[[SimulatedNode], None]
) -> None:
    """The agent continues with passes and stays below its limit."""
    attack(node)
    port = free_port()
    words = [*node.agent_words, f"--http=127.0.0.1:{port}", "--period-seconds=0.1"]
    with (tmp_path / "log").open("wb") as log:
        agent = subprocess.Popen([sys.executable, "-m", "agent", *words], stdout=log, stderr=log)

    def passes() -> float:
        return sum(
            float(line.rpartition(" ")[2])
            for line in page(port, "/metrics")[1].splitlines()
            if line.startswith("topolet_reconciliations_total")
        )

    try:
        eventually(
            "two passes end", lambda: agent.poll() is not None or passes() >= 2, PATIENCE_SECONDS
        )
        assert agent.poll() is None, (tmp_path / "log").read_text()
        assert _peak_bytes(agent.pid) < LIMIT_BYTES
    finally:
        agent.kill()
        agent.wait()
