"""A pod that waits for CPUs, with a real runtime: command, doctor and agent name who has them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from agent.cgroup.hierarchy import mounted
from agent.model.cpu.cpuset import CpuSet
from agent.model.settings.feature_modes import FeatureMode
from agent.usage import QUIET_FILE
from agent.view.features import ShownFeature
from agent.view.quiet import ShownQuiet, ShownQuietOwner
from tests.cgroup.real_groups import RealGroups
from tests.fixtures.pods import run_pod
from tests.integration.harness import TestNode, kernel_group
from tests.waiting import eventually

CONTROLLERS = ("cpu", "cpuacct", "cpuset")


@pytest.fixture
def spinning() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def groups() -> Iterator[RealGroups]:
    mount = mounted("/sys/fs/cgroup", "cpuset")
    assert mount is not None
    real = RealGroups({"cpuset": mount})
    yield real
    real.close()


def spin_in(node: TestNode, container: str) -> subprocess.Popen[bytes]:
    """A process in the container's cgroups that uses all that it gets."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    inside = node.direct.container_status(container).pid
    for folder in {kernel_group(inside, controller) for controller in CONTROLLERS}:
        (folder / "cgroup.procs").write_text(str(process.pid))
    return process


def explained(node: TestNode, *words: str) -> dict[str, Any]:
    done = node.run_cli(
        *("explain", *words, "--output=json", f"--state-dir={node.state}"),
        f"--runtime-endpoint=unix://{node.containerd.socket}",
    )
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def findings(node: TestNode) -> dict[str, str]:
    """What doctor says about the node, by code."""
    done = node.run_cli(
        *("doctor", "--output=json", f"--state-dir={node.state}"),
        f"--runtime-endpoint=unix://{node.containerd.socket}",
        f"--kubelet-dir={node.folder / 'kubelet'}",
    )
    return {finding["code"]: finding["text"] for finding in json.loads(done.stdout)["node"]}


def test_the_neighbour_on_the_same_cpus_is_named(
    node: TestNode, spinning: list[subprocess.Popen[bytes]]
) -> None:
    node.start_agent("--usage")
    _, owner = run_pod(node.direct, node.spec("owner", "LSE", "1"))
    _, api = run_pod(node.direct, node.spec("api", "LS"))
    _, hog = run_pod(node.direct, node.spec("hog", "LS"))
    eventually("the pool has one CPU", lambda: (node.cpus(api), node.cpus(hog)) == ("0", "0"))
    spinning += [spin_in(node, container) for container in (owner, api, *[hog] * 4)]

    def now(name: str) -> dict[str, Any]:
        cpu: dict[str, Any] = explained(node, name, "--now=here")["cpu"]
        return cpu

    waits = now("api")
    assert waits["cpus"] == "0"
    assert waits["waited_milliseconds"] > 200
    pods = [taker["name"] for taker in waits["takers"] if taker["kind"] == "pod"]
    assert pods == ["default/hog"], "the owner of CPU 1 can not be on CPU 0"
    assert "default/api" not in [taker["name"] for taker in now("owner")["takers"]]

    series = 'topolet_pod_cpu_taken_ratio{kind="pod",namespace="default",pod="api",'
    series += 'taker="default/hog"}'
    eventually("the agent has noticed it by itself", lambda: node.metric(series) > 0)
    assert "default/api waited " in findings(node)["pods-disturbed"]


def test_all_that_runs_on_the_cpus_of_an_owner_is_named(
    node: TestNode, spinning: list[subprocess.Popen[bytes]], groups: RealGroups
) -> None:
    node.start_agent()
    _, owner = run_pod(node.direct, node.spec("owner", "LSE", "1"))
    _, api = run_pod(node.direct, node.spec("api", "LS"))
    eventually("the pool has one CPU", lambda: (node.cpus(api), node.cpus(owner)) == ("0", "1"))
    spinning += [spin_in(node, owner), spin_in(node, api)]
    stranger = groups.make("/stranger", CpuSet([1]))
    groups.process(stranger, sys.executable, "-c", "while True: pass")
    unit = groups.top.strip("/")

    own_cpus = explained(node, "owner", "--now=here")["own_cpus"]
    assert (own_cpus["pod"], own_cpus["cpus"]) == ("default/owner", "1")
    ran = {one["name"]: one["microseconds"] for one in own_cpus["disturbers"]}
    assert ran[unit] > 10_000
    assert not {"default/owner", "default/api"} & ran.keys(), "its own, and one on another CPU"
    assert {one["cpus"] for one in own_cpus["disturbers"]} == {"1"}
    assert "ticks" in {one["kind"] for one in own_cpus["disturbers"]}
    assert explained(node, "api", "--now=here")["own_cpus"] is None

    [owner_of_node] = explained(node, "node", "quiet")["disturbed"]
    assert owner_of_node["pod"] == "default/owner"
    remedies = {advice["remedy"]: advice["text"] for advice in owner_of_node["advice"]}
    assert "it is off on this node" in remedies["interrupts"]

    assert not {code for code in findings(node) if code.startswith("quiet")}, "nobody asks"
    # The features themselves would change this machine for others.
    quiet = ShownQuiet(
        (ShownFeature("host-slices", FeatureMode.ACT, 1),),
        (ShownQuietOwner("default/owner", "1", ("host-slices",)),),
    )
    (node.state / QUIET_FILE).write_bytes(msgspec.json.encode(quiet))
    told = findings(node)
    assert f"default/owner: {unit}: " in told["quiet-tasks-remain"]
    assert "quiet-interrupts-remain" not in told, "the pod does not ask for it"
