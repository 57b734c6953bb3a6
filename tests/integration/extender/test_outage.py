"""The API server is killed or hangs, and its objects change before the scheduler reads them: the
scheduler's responses during the outage, and its allocations afterwards."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.kube.errors import ServerError, TooManyRequestsError, UnreachableError
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import RESOURCE_STATUS
from tests.fixtures import fleet
from tests.fixtures.constants import SCHEDULER_STALE
from tests.fixtures.fleet import SMALL, Machine
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects as kubescheduler
from tests.integration.scheduling import (
    Scheduler,
    binding_args,
    extender_args,
    write_kubeconfig,
)
from tests.waiting import eventually

Object = dict[str, Any]

STALE_SECONDS = 15
SYSTEM = "topolet-system"
RECOVERY_SECONDS = 20.0
"""Ten seconds are documented. A busy machine needs more."""
RESOURCES = (
    "pods",
    "nodes",
    "noderesourcetopologies",
    "devices",
    "rebindresources",
    "reservations",
    "poddisruptionbudgets",
    "namespaces",
)
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
STALE = re.compile(r"the watch of \w+ has been out of touch for \d+ s")
CPUS_OF_A_POD = 2
RESERVED = CpuSet.parse("0-23")
"""24 of 32 CPUs: four more pods fit."""
ROOM = 4


class Environment:
    """A node of 32 CPUs with its agent, and a namespace of the same name."""

    def __init__(self, server: ApiServer, name: str, config: Path) -> None:
        self.server = server
        self.name = name
        self.config = config
        self._pods = f"/api/v1/namespaces/{name}/pods"
        kubescheduler.namespace(server, name)
        server.default_account(SYSTEM)
        machine = Machine(SMALL)
        node = machine.node(name)
        del node["metadata"]["uid"]
        server.create("/api/v1/nodes", node)
        server.create(TOPOLOGIES, machine.topology(name))
        body = fleet.agent(name)
        labels = body["metadata"]["labels"]
        server.pod(SYSTEM, f"agent-{name}", name, labels=labels)
        status = f"/api/v1/namespaces/{SYSTEM}/pods/agent-{name}/status"
        server.admin.merge(status, {"status": body["status"]})

    def pod(self, number: int) -> Object:
        """A pod that requests exclusive CPUs and is not bound."""
        body = fleet.owner(CPUS_OF_A_POD, 1).pod(f"p-{number}")
        metadata = {key: body["metadata"][key] for key in ("name", "labels", "annotations")}
        spec = {**body["spec"], "schedulerName": "topolet-scheduler", "priority": None}
        spec |= {"automountServiceAccountToken": False}
        return self.server.create(self._pods, {"metadata": metadata, "spec": spec})

    def bound(self) -> dict[str, tuple[CpuSet, int]]:
        """By name: the CPUs of each bound pod, and the version of the change."""
        found = {}
        for each in json.loads(self.server.admin.get(self._pods))["items"]:
            metadata = each["metadata"]
            if metadata["name"].startswith("p-") and each["spec"].get("nodeName"):
                cpuset = json.loads(metadata["annotations"][RESOURCE_STATUS])["cpuset"]
                found[metadata["name"]] = CpuSet.parse(cpuset), int(metadata["resourceVersion"])
        return found

    def reserve(self) -> int:
        """Reserves CPUs as soon as the server answers. Returns the version of the object."""
        note = {"node.koordinator.sh/reservation": json.dumps({"reservedCPUs": str(RESERVED)})}
        patch = {"metadata": {"annotations": note}}
        deadline = time.monotonic() + 300
        while True:
            try:
                stored = self.server.admin.merge(f"{TOPOLOGIES}/{self.name}", patch)
            except (UnreachableError, ServerError, TooManyRequestsError):
                assert time.monotonic() < deadline
                time.sleep(0.02)
                continue
            return int(msgspec.json.decode(stored)["metadata"]["resourceVersion"])


@pytest.fixture
def env(
    apiserver: ApiServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Environment]:
    config = tmp_path / "kubeconfig"
    write_kubeconfig(apiserver, config)
    name = f"outage-{re.sub('[^a-z0-9]+', '-', request.node.name.lower()).strip('-')[-40:]}"
    it = Environment(apiserver, name, config)
    yield it
    # Another test's kube-scheduler would bind them to its nodes.
    for pod in kubescheduler.pods(apiserver, name):
        kubescheduler.force_delete(apiserver, name, pod)
    apiserver.admin.delete(f"/api/v1/nodes/{name}")
    apiserver.admin.delete(f"{TOPOLOGIES}/{name}")


@contextlib.contextmanager
def scheduling(scheduler: Scheduler, pods: list[Object], node: str) -> Iterator[None]:
    """Filters and binds the pods repeatedly, as kube-scheduler does. Responses may be errors."""
    ended = threading.Event()

    def scheduled(pod: Object) -> bool:
        status, text = scheduler.reply("filter", extender_args(pod, [node]))
        if status != 200 or not json.loads(text).get("NodeNames"):
            return False
        status, text = scheduler.reply("bind", binding_args(pod, node))
        return status == 200 and not json.loads(text)["Error"]

    def retry(pod: Object) -> None:
        while not ended.wait(0.02) and not scheduled(pod):
            pass

    with ThreadPoolExecutor(len(pods)) as callers:
        retries = [callers.submit(retry, pod) for pod in pods]
        try:
            yield
        finally:
            ended.set()
        assert all(each.result() is None for each in retries)


def ages(scheduler: Scheduler) -> dict[str, float]:
    """The ages of the watches in seconds, by resource."""
    series = r'^topolet_scheduler_watch_age_seconds\{resource="(\w+)"\} (\S+)$'
    page = scheduler.page("metrics")
    return {name: float(age) for name, age in re.findall(series, page, re.MULTILINE)}


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        pytest.param(["--lease-seconds=0"], 5, id="short, alone"),
        pytest.param([], 120, id="two minutes", marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(400)
def test_cpus_reserved_during_an_outage_are_not_allocated_afterwards(
    env: Environment, tmp_path: Path, flags: list[str], seconds: float
) -> None:
    server = env.server
    with (
        Scheduler(tmp_path, env.config) as scheduler,
        ThreadPoolExecutor(1) as other,
        contextlib.ExitStack() as calls,
    ):
        scheduler.start(*flags, constants={SCHEDULER_STALE: STALE_SECONDS})
        scheduler.until_ready()
        pods = [env.pod(number) for number in range(8)]
        filtered = extender_args(pods[0], [env.name])
        eventually("offered", lambda: scheduler.call("filter", filtered)["NodeNames"])
        with server.outage(seconds):
            calls.enter_context(scheduling(scheduler, pods, env.name))
            reserving = other.submit(env.reserve)
            if seconds > STALE_SECONDS:
                eventually("a watch is stale", lambda: STALE.search(scheduler.ready()[1]))
                assert scheduler.ready()[0] == 503
                assert scheduler.reply("filter", filtered)[0] == 503
        reserved_at = reserving.result()
        eventually(
            "every watch is current again", lambda: watches_current(scheduler), RECOVERY_SECONDS
        )
        eventually("the free CPUs are allocated", lambda: len(env.bound()) == ROOM, 60)
        bound = env.bound()
        calls.close()
        assert scheduler.end() == 0
    for name, (cpus, version) in bound.items():
        assert version > reserved_at, f"{name} was bound before the other client wrote"
        assert not cpus & RESERVED, f"{name} has {cpus}, and {RESERVED} are reserved"
    assert len({cpu for cpus, _ in bound.values() for cpu in cpus}) == ROOM * CPUS_OF_A_POD


def test_idle_watches_are_current_and_watches_of_a_hanging_server_are_stale(
    env: Environment, tmp_path: Path
) -> None:
    with Scheduler(tmp_path, env.config) as scheduler:
        scheduler.start("--lease-seconds=0", constants={SCHEDULER_STALE: STALE_SECONDS})
        scheduler.until_ready()
        assert ages(scheduler).keys() == set(RESOURCES)
        idle_until = time.monotonic() + 1.3 * STALE_SECONDS
        while time.monotonic() < idle_until:
            assert scheduler.ready() == (200, "ok\n")
            time.sleep(0.1)
        pod = env.pod(0)
        filtered = extender_args(pod, [env.name])
        eventually("offered", lambda: scheduler.call("filter", filtered)["NodeNames"])
        env.server.suspend_server()
        try:
            eventually("a watch is stale", lambda: STALE.search(scheduler.ready()[1]), 60)
            for verb, body in (("filter", filtered), ("bind", binding_args(pod, env.name))):
                status, text = scheduler.reply(verb, body)
                assert status == 503
                assert STALE.search(text)
            oldest = max(ages(scheduler).values())
            assert oldest > STALE_SECONDS
        finally:
            env.server.resume_server()
        eventually(
            "every watch is current again", lambda: watches_current(scheduler), RECOVERY_SECONDS
        )
        eventually("bound", lambda: scheduler.reply("bind", binding_args(pod, env.name))[0] == 200)
        assert scheduler.end() == 0


def watches_current(scheduler: Scheduler) -> bool:
    """Whether all watches are current. A watch is renewed three times in STALE_SECONDS."""
    return scheduler.ready()[0] == 200 and max(ages(scheduler).values()) < STALE_SECONDS / 2
