"""The scheduler process with a real API server and the roles of its overlay."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import RESOURCE_STATUS
from agent.scheduler.leader.gate import LABEL
from tests.deploy.api import Api
from tests.deploy.manifests import ROOT
from tests.fixtures import fleet
from tests.fixtures.fleet import SMALL, Kind, Machine
from tests.integration import deployed
from tests.integration.apiserver import agent_account
from tests.integration.apiserver.server import ApiServer
from tests.integration.scheduling import (
    Scheduler,
    binding_args,
    extender_args,
    write_kubeconfig,
)
from tests.waiting import eventually

Object = dict[str, Any]

NAMESPACE, SYSTEM = "scheduled", "topolet-system"
NODES = ("extended-1", "extended-2")
CPUS = 32
"""CPUs of each node."""


class Cluster:
    """Two nodes of 32 CPUs with their agents, and a namespace for pods."""

    def __init__(self, api: Api, config: Path) -> None:
        self.api = api
        self.config = config

    def pod(self, kind: Kind, name: str) -> Object:
        """Creates a pod, which is not bound."""
        body = kind.pod(name)
        metadata = {key: body["metadata"][key] for key in ("name", "labels", "annotations")}
        spec = {**body["spec"], "schedulerName": "topolet-scheduler"}
        spec |= {"automountServiceAccountToken": False, "priority": None}
        made = {"metadata": metadata, "spec": spec}
        return self.api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", made)

    def read(self, pod: Object) -> Object:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        return self.api.request("GET", path)

    def cpus(self, pod: Object) -> CpuSet:
        """The CPUs of the pod's annotation."""
        status = json.loads(self.read(pod)["metadata"]["annotations"][RESOURCE_STATUS])
        return CpuSet.parse(status["cpuset"])

    def delete(self, pod: Object) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        self.api.request("DELETE", f"{path}?gracePeriodSeconds=0")


@pytest.fixture(scope="module")
def cluster(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    api = deployed.administrator(apiserver, "scheduler-deployer")
    config = tmp_path_factory.mktemp("scheduler") / "kubeconfig"
    write_kubeconfig(apiserver, config)
    api.namespace(NAMESPACE)
    api.account(SYSTEM)
    machine = Machine(SMALL)
    for name in NODES:
        node = machine.node(name)
        del node["metadata"]["uid"]
        api.request("POST", "/api/v1/nodes", node)
        deployed.apply(api, [machine.topology(name)])
        add_agent(api, name)
    return Cluster(api, config)


def add_agent(api: Api, node: str) -> None:
    """Creates a Ready agent pod on a node."""
    body = fleet.agent(node)
    metadata = {"name": f"agent-{node}", "labels": body["metadata"]["labels"]}
    spec = {"nodeName": node, "containers": [{"name": "agent", "image": "i"}]}
    pods = f"/api/v1/namespaces/{SYSTEM}/pods"
    made = {"metadata": metadata, "spec": {**spec, "automountServiceAccountToken": False}}
    api.request("POST", pods, made)
    api.merge(f"{pods}/agent-{node}/status", {"status": body["status"]})


@pytest.fixture
def scheduler(cluster: Cluster, tmp_path: Path) -> Iterator[Scheduler]:
    """A leader without TLS."""
    with Scheduler(tmp_path, cluster.config) as it:
        it.start()
        it.until_ready()
        yield it
        if it.running:
            assert it.end() == 0


def owner(cpus: int) -> Kind:
    return fleet.owner(cpus, 1)


def scheduled(scheduler: Scheduler, pod: Object) -> str:
    """Filters, scores and binds the pod as kube-scheduler does. Repeats it if the bind was refused
    because a watch was interrupted. Returns the node with the best score."""
    node = ""

    def bound() -> bool:
        nonlocal node
        nodes = scheduler.call("filter", extender_args(pod, NODES))["NodeNames"]
        assert nodes
        scores = scheduler.call("prioritize", extender_args(pod, nodes))
        node = str(max(scores, key=lambda each: each["Score"])["Host"])
        assert node in nodes
        error = scheduler.call("bind", binding_args(pod, node))["Error"]
        assert not error or "has not caught up yet" in error, error
        return not error

    eventually("bound", bound)
    return node


def test_a_pod_is_bound_with_the_cpus_of_its_annotation(
    cluster: Cluster, scheduler: Scheduler
) -> None:
    pods = [cluster.pod(owner(12), f"a-{number}") for number in range(4)]
    nodes = [scheduled(scheduler, pod) for pod in pods]
    for pod, node in zip(pods, nodes, strict=True):
        assert cluster.read(pod)["spec"]["nodeName"] == node
        assert len(cluster.cpus(pod)) == 12
    for name in NODES:
        mine = [cluster.cpus(pod) for pod, node in zip(pods, nodes, strict=True) if node == name]
        assert len({cpu for cpus in mine for cpu in cpus}) == 12 * len(mine) <= CPUS
    more = cluster.pod(owner(12), "a-more")
    answer = scheduler.call("filter", extender_args(more, [*NODES, "missing"]))
    assert answer["NodeNames"] == []
    failed = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
    assert set(failed) == {*NODES, "missing"}
    assert "12" in failed[NODES[0]]
    cluster.delete(pods[0])
    eventually(
        "the scheduler has the room",
        lambda: scheduler.call("filter", extender_args(more, NODES))["NodeNames"],
    )
    for pod in (*pods[1:], more):
        cluster.delete(pod)


def test_the_next_leader_has_the_same_allocations(
    cluster: Cluster, scheduler: Scheduler, tmp_path: Path
) -> None:
    """The follower is not ready and answers 503. It leads when the leader ends."""
    with Scheduler(tmp_path, cluster.config, "follower") as follower:
        follower.start()
        pod = cluster.pod(owner(20), "b-first")
        node = scheduled(scheduler, pod)
        eventually("the leader is known", lambda: "the leader is" in follower.ready()[1])
        assert follower.ready()[0] == 503
        for verb, body in (
            ("filter", extender_args(pod, NODES)),
            ("bind", binding_args(pod, node)),
        ):
            status, text = follower.reply(verb, body)
            assert (status, "the leader is" in text) == (503, True)
        assert scheduler.end() == 0
        follower.until_ready()
        second = cluster.pod(owner(20), "b-second")
        assert scheduled(follower, second) != node
        assert not follower.call(
            "filter", extender_args(cluster.pod(owner(20), "b-third"), [node])
        )["NodeNames"]
        assert follower.end() == 0
    for name in ("b-first", "b-second", "b-third"):
        cluster.delete({"metadata": {"name": name}})


def test_no_replica_leads_while_a_request_of_the_last_leader_is_in_progress(
    cluster: Cluster, scheduler: Scheduler, tmp_path: Path
) -> None:
    """It may be a bind, which the next leader would not see."""
    with (
        Scheduler(tmp_path, cluster.config, "follower") as follower,
        socket.create_connection(("127.0.0.1", scheduler.port), timeout=30) as unfinished,
    ):
        follower.start()
        eventually("the leader is known", lambda: "the leader is" in follower.ready()[1])
        unfinished.sendall(b"POST /bind HTTP/1.1\r\nHost: localhost\r\n")
        eventually("the request is in progress", lambda: scheduler.ready()[0] == 200)
        with ThreadPoolExecutor(1) as executor:
            end = executor.submit(scheduler.end)
            follower.until_ready()
            unfinished.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                assert unfinished.recv(1 << 16) is not None  # BlockingIOError: it is still open
            assert end.result() == 0
        assert follower.end() == 0


def test_a_killed_leader_leads_again_as_soon_as_it_is_ready(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Its Lease would expire after a minute. The standby does not lead, and reports the same
    leader."""
    flag = "--lease-seconds=60"
    with (
        Scheduler(tmp_path, cluster.config) as scheduler,
        Scheduler(tmp_path, cluster.config, "standby") as standby,
    ):
        scheduler.start(flag)
        scheduler.until_ready()
        standby.start(flag)
        eventually("the leader is known", lambda: "the leader is" in standby.ready()[1])
        leader = standby.ready()[1]
        for number in range(3):
            pod = cluster.pod(owner(4), f"i-{number}")
            scheduled(scheduler, pod)
            cluster.delete(pod)
            scheduler.end(signal.SIGKILL)
            began = time.monotonic()
            scheduler.start(flag)
            scheduler.until_ready()
            print(f"leads {time.monotonic() - began:.1f} s after the start")
            assert standby.ready() == (503, leader)
        assert scheduler.end() == 0
        standby.until_ready()
        assert standby.end() == 0


def test_a_standby_is_ready_and_the_leaders_pod_has_the_label(
    apiserver: ApiServer, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod is that of the token."""
    for name, value in agent_account.environment(apiserver).items():
        monkeypatch.setenv(name, value)
    names = ["scheduler-a", "scheduler-b"]
    flags = []
    for name in names:
        apiserver.pod(SYSTEM, name, NODES[0], "topolet-scheduler")
        folder = tmp_path / name
        folder.mkdir()
        (folder / "ca.crt").write_bytes((apiserver.folder / "ca.crt").read_bytes())
        (folder / "token").write_text(apiserver.token(SYSTEM, "topolet-scheduler", pod=name))
        flags.append(f"--kubeconfig={folder}")
    waiting = cluster.pod(owner(4), "j")

    def leaders() -> list[bool]:
        paths = [f"/api/v1/namespaces/{SYSTEM}/pods/{name}" for name in names]
        pods = [cluster.api.request("GET", path) for path in paths]
        return [LABEL in pod["metadata"].get("labels", {}) for pod in pods]

    with (
        Scheduler(tmp_path, cluster.config) as first,
        Scheduler(tmp_path, cluster.config, "second") as second,
    ):
        first.start(flags[0])
        first.until_ready()
        assert leaders() == [True, False]
        second.start(flags[1])
        second.until_ready()
        assert leaders() == [True, False]
        status, text = second.reply("filter", extender_args(waiting, NODES))
        assert (status, "the leader is" in text) == (503, True)
        first.end(signal.SIGKILL)
        eventually("the second one leads", lambda: leaders() == [True, True])
        first.start(flags[0])
        first.until_ready()
        assert leaders() == [False, True], "a standby removes its former label"
        assert second.end() == 0
        eventually("the first one leads again", lambda: leaders() == [True, False])
        assert first.end() == 0
        assert leaders() == [False, False]
    cluster.delete(waiting)
    for name in names:
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{name}?gracePeriodSeconds=0"
        cluster.api.request("DELETE", path)


def test_the_arguments_file_determines_which_node_is_better(
    cluster: Cluster, tmp_path: Path
) -> None:
    strategy = {"type": "LeastAllocated"}
    wanted = {"kind": "CPUOrchestrationPluginArgs", "scoringStrategy": strategy}
    (tmp_path / "args").write_text(json.dumps(wanted))
    pods = [cluster.pod(owner(8), f"h-{number}") for number in range(2)]
    with Scheduler(tmp_path, cluster.config) as scheduler:
        scheduler.start(f"--scheduler-args-file={tmp_path / 'args'}")
        scheduler.until_ready()
        first, second = (scheduled(scheduler, pod) for pod in pods)
        assert first != second
        assert scheduler.end() == 0
    for pod in pods:
        cluster.delete(pod)


def send_invalid_requests(port: int, ended: threading.Event) -> int:
    """Sends invalid requests until the event. Returns how often all of them were sent."""
    body = json.dumps({"Pod": {}, "NodeNames": [1]}).encode()
    head = b"POST /filter HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = (
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        head + b"Content-Length: 99999999999\r\n\r\n",
        head + b"Content-Length: 500\r\n\r\n{",
        head + b"Content-Length: -5\r\n\r\n{}",
        head + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"\0" * 5000,
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"",
    )
    rounds = 0
    while not ended.is_set():
        for each in sent:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
                try:
                    sock.sendall(each)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(1 << 16):
                        pass
                except OSError:
                    pass  # the server may close the connection early
            rounds += 1
    return rounds


def test_invalid_callers_do_not_affect_a_valid_one(cluster: Cluster, scheduler: Scheduler) -> None:
    pod = cluster.pod(owner(4), "e-good")
    expected = scheduler.call("filter", extender_args(pod, NODES))
    ended = threading.Event()
    with ThreadPoolExecutor(3) as callers:
        callers_rounds = [
            callers.submit(send_invalid_requests, scheduler.port, ended) for _ in range(3)
        ]
        try:
            for _ in range(100):
                assert scheduler.call("filter", extender_args(pod, NODES)) == expected
        finally:
            ended.set()
        assert all(each.result() for each in callers_rounds)
    assert scheduler.call("bind", binding_args(pod, expected["NodeNames"][0])) == {"Error": ""}
    assert "Traceback" not in scheduler.log()
    cluster.delete(pod)


def test_metrics_count_the_requests_of_each_verb(cluster: Cluster, scheduler: Scheduler) -> None:
    pod = cluster.pod(owner(4), "f-counted")
    scheduled(scheduler, pod)
    page = scheduler.page("metrics")
    for verb in ("filter", "prioritize", "bind"):
        assert f'topolet_scheduler_requests_total{{result="answered",verb="{verb}"}} 1' in page
    assert "topolet_scheduler_leader 1" in page
    found = re.search(r"^topolet_scheduler_nodes (\S+)$", page, re.MULTILINE)
    assert found is not None
    assert float(found[1]) >= len(NODES)
    cluster.delete(pod)


def test_the_documented_certificate_is_valid_for_server_and_client(
    cluster: Cluster, tmp_path: Path
) -> None:
    """With the name localhost: the name of the Service does not resolve in the test."""
    page = (ROOT / "docs" / "scheduler.md").read_text()
    found = re.search(r"^name=(\S+)\n(openssl (?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert found is not None
    command = found[2]
    env = {**os.environ, "name": "localhost"}
    subprocess.run(command, shell=True, cwd=tmp_path, env=env, check=True, capture_output=True)
    flags = [
        f"--tls-dir={tmp_path}",
        f"--client-ca-file={tmp_path / 'tls.crt'}",
        "--client-names=localhost",
    ]
    pod = cluster.pod(owner(4), "g-tls")
    with Scheduler(tmp_path, cluster.config) as scheduler:
        scheduler.start(*flags)
        scheduler.until_ready()
        trust = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            scheduler.reply_tls(trust, "filter", extender_args(pod, NODES))
        trust.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        status, text = scheduler.reply_tls(trust, "filter", extender_args(pod, NODES))
        assert status == 200
        node = json.loads(text)["NodeNames"][0]
        assert scheduler.reply_tls(trust, "bind", binding_args(pod, node))[1] == '{"Error":""}'
        assert scheduler.end() == 0
    assert cluster.read(pod)["spec"]["nodeName"] == node
    cluster.delete(pod)
