from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.allocate.node_allocator.properties import AllocatorRules
from agent.host.daemon import FaultError
from agent.http.limits import HANDSHAKES_EACH_SECOND, UNCERTIFIED_EACH_SECOND
from agent.http.peers import NodeAddresses
from agent.http.server import HttpServer
from agent.kube.auth import FileAccess
from agent.kube.transport import Transport
from agent.model.cpu.policies import GpuObjective, Strategy
from agent.model.settings import plugin_args
from agent.model.settings.options import SettingsError
from agent.model.settings.plugin_args import Rules, ZoneScoring
from agent.model.settings.scheduler import SchedulerSettings, split_names
from agent.scheduler import process, rules
from agent.scheduler.extender import extender
from agent.scheduler.leader import election
from agent.scheduler.state.binder import ReservationExpiry
from agent.scheduler.state.pods_api import BindingApi
from agent.scheduler.state.records import AGENT_LABELS
from tests.fixtures.fleet import SMALL, owner
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Request, reply
from tests.scheduler import clusters
from tests.waiting import DEADLINE_SECONDS, eventually


@pytest.mark.parametrize("lease_seconds", [3, 15, 600])
def test_a_bind_of_a_leader_ends_before_another_leader_may_start(lease_seconds: int) -> None:
    times = election.lease_times(lease_seconds)
    limits = election.bind_limits(times)
    seconds = limits.connect_seconds + limits.read_seconds
    assert times.renew_seconds + seconds < lease_seconds


def test_a_bind_without_a_response_ends_before_the_timeout_of_kube_scheduler() -> None:
    """kube-scheduler then reports the reason to users. After a Binding without a response the pod
    is read, and this request may have no response either."""
    folder = Path(__file__).parents[2] / "deploy/components/scheduler"
    http_timeout = re.search(r"httpTimeout: (\d+)s", (folder / "configuration.yaml").read_text())
    assert http_timeout is not None
    times = election.lease_times(SchedulerSettings().lease_seconds)
    both = election.bind_limits(times), election.READ_LIMITS
    waits = sum(each.connect_seconds + each.read_seconds for each in both)
    assert waits < int(http_timeout[1])


def test_the_default_scoring_is_that_of_the_proposal() -> None:
    assert rules.scheduler_args("").rules is Rules.PROPOSAL


@pytest.mark.parametrize(
    "text",
    [
        "kind: NodeNUMAResourceArgs\nscoringStrategy:\n  type: MostAllocated\n",
        '{"kind": "NodeNUMAResourceArgs", "scoringStrategy": {"type": "MostAllocated"}}',
    ],
)
def test_the_scheduler_args_file_sets_the_scoring(tmp_path: Path, text: str) -> None:
    (tmp_path / "args").write_text(text)
    found = rules.scheduler_args(str(tmp_path / "args"))
    assert (found.rules, found.node.type) == (Rules.KOORDINATOR, Strategy.MOST_ALLOCATED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "args: "),
        ("kind: Other", "kind"),
        ("kind: NodeNUMAResourceArgs\nscoringStrategy: {type: Best}", "scoringStrategy.type"),
        ("- a", "CPUOrchestrationPluginArgs"),
    ],
)
def test_the_error_for_an_invalid_file_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "args"
    path.write_text(text)
    with pytest.raises(SettingsError, match=f"scheduler-args-file {path}") as raised:
        rules.scheduler_args(str(path))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [("", set()), ("a", {"a"}), (" a, b.c ,,", {"a", "b.c"}), (",", set())],
)
def test_client_names_are_separated_by_commas(text: str, names: set[str]) -> None:
    assert split_names(text) == names


def test_the_agents_of_the_manifests_are_selected() -> None:
    assert rules.agent_labels(SchedulerSettings().agent_selector) == AGENT_LABELS
    assert rules.agent_labels(" a=b, c= ,,") == {"a": "b", "c": ""}
    assert rules.agent_labels("") == {}
    for text in ("a", "=b"):
        with pytest.raises(SettingsError, match=f"agent-selector: '{text}' is not KEY=VALUE"):
            rules.agent_labels(text)


def test_pods_of_another_namespace_are_not_agents() -> None:
    ours = rules.agent_selector(SchedulerSettings(agent_selector="a=b", release_namespace="ns"))
    assert [ours.include(each, {"a": "b"}) for each in ("ns", "elsewhere")] == [True, False]


def test_the_allocator_rules_follow_from_the_scheduler_args() -> None:
    file = {
        "kind": "NodeNUMAResourceArgs",
        "gpuObjective": "besteffort",
        "deviceStrategy": "MostAllocated",
        "gpuShareStrategy": "LeastAllocated",
        "gpuShareUnsupportedModels": [{"vendor": "nvidia", "model": "T4"}],
        "zoneScoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu"}]},
    }
    args = plugin_args.decode(file)
    assert rules.allocator_rules(args) == AllocatorRules(
        strategy=Strategy.MOST_ALLOCATED,
        shares=Strategy.LEAST_ALLOCATED,
        unshared={"nvidia": frozenset({"T4"})},
        scoring=args,
        zones=ZoneScoring(Strategy.MOST_ALLOCATED, {"cpu": 1}),
        gpu_objective=GpuObjective.BESTEFFORT,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tls_dir": "", "client_ca_file": "/ca"}, "client-ca-file"),
        ({"tls_dir": "", "client_names": "a"}, "client-names"),
        ({"tls_dir": "", "https": "80"}, "'80:9444'"),
        ({"tls_dir": "", "http": "a:b"}, "'a:b'"),
        ({"tls_dir": "", "node_addresses": "x"}, "node-addresses: 'x'"),
    ],
)
def test_inconsistent_settings_are_rejected(changes: dict[str, str], message: str) -> None:
    """A setting that requires client certificates must not lead to a port that accepts all
    clients."""
    settings = msgspec.structs.replace(SchedulerSettings(http=""), **changes)
    pages = dict.fromkeys(("/healthz", "/readyz", "/metrics"))
    with pytest.raises(SettingsError, match=message):
        process.servers(settings, pages, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("client_ca", ["", "/ca.crt"])
def test_an_address_opens_a_limited_number_of_connections_to_the_extender(client_ca: str) -> None:
    """Without a client CA the limit applies to kube-scheduler too."""
    settings = SchedulerSettings(client_ca_file=client_ca)
    each_second = process.extender_limits(settings).connections.new_each_second
    assert each_second == (HANDSHAKES_EACH_SECOND if client_ca else UNCERTIFIED_EACH_SECOND)
    assert 0 < HANDSHAKES_EACH_SECOND < UNCERTIFIED_EACH_SECOND


def post(port: int, verb: str, body: object) -> Any:
    """Returns the body of the response, whose status must be 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    connection.request("POST", f"/{verb}", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status == 200, text
    return json.loads(text)


def test_binds_that_wait_for_the_api_server_do_not_delay_a_filter() -> None:
    """kube-scheduler sends any number of binds in parallel, and waits only for the filter."""
    respond, bodies = threading.Event(), [owner(2, 2).pod(f"p{number}") for number in range(15)]

    def respond_later(
        _: fake_api_server.Server, connection: socket.socket, request: Request
    ) -> bool:
        assert respond.wait(DEADLINE_SECONDS)
        return reply(connection, 201, {})

    cache = clusters.cluster({"a": SMALL})
    with fake_api_server.serving() as api, ThreadPoolExecutor(len(bodies)) as callers:
        api.answer = respond_later
        limits = election.bind_limits(election.lease_times(600))
        transport = Transport(FileAccess(api.url), limits=limits, connections=len(bodies))
        handlers = clusters.Extender(cache, BindingApi(transport)).handlers
        routes = extender.routes(handlers, lambda: None, extender.metrics())
        server = HttpServer("127.0.0.1:0", routes, process.LIMITS, NodeAddresses())
        server.start()
        for body in bodies:
            post(server.port, "filter", {"Pod": body, "NodeNames": ["a"]})
        binds = [
            callers.submit(
                post,
                server.port,
                "bind",
                {
                    "PodName": body["metadata"]["name"],
                    "PodNamespace": body["metadata"]["namespace"],
                    "PodUID": body["metadata"]["uid"],
                    "Node": "a",
                },
            )
            for body in bodies
        ]
        eventually("all binds wait", lambda: len(api.requests) == len(bodies))
        last = owner(2, 2).pod("last")
        found = post(server.port, "filter", {"Pod": last, "NodeNames": ["a"]})
        assert found["NodeNames"] == ["a"], "two CPUs are free"
        assert not any(each.done() for each in binds)
        respond.set()
        assert [each.result() for each in binds] == [{"Error": ""}] * len(bodies)
        server.close()
        transport.close()


def test_the_process_exits_when_one_of_its_threads_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that is not updated would allocate CPUs twice."""

    def fails(_: ReservationExpiry) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ReservationExpiry, "step", fails)
    config = tmp_path / "kubeconfig"
    signals = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    timeout = threading.Timer(DEADLINE_SECONDS, signal.raise_signal, (signal.SIGTERM,))
    timeout.start()
    with fake_api_server.serving() as api:
        config.write_text(json.dumps(kubeconfig(api.url)))
        settings = SchedulerSettings(
            kubeconfig=str(config),
            state_dir=str(tmp_path),
            https="127.0.0.1:0",
            http="",
            tls_dir="",
        )
        with pytest.raises(FaultError, match="thread expiry has failed: ZeroDivisionError"):
            process.run(settings)
    timeout.cancel()
    for number, handler in signals.items():
        signal.signal(number, handler)


def kubeconfig(url: str) -> Any:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
