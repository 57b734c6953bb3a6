"""A real Prometheus with the rules of the chart, real processes and real faults: an alert fires,
and resolves after the fault. tests/deploy/test_alerts.py tests the rules one by one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.rpc.grpc import RpcError
from tests.deploy.chart import CHART
from tests.discover import gpumachines
from tests.fixtures.pods import create_container, create_request, remove_pod, run_pod, run_sandbox
from tests.fixtures.ports import free_port
from tests.fixtures.prometheus import Prometheus
from tests.integration.gpunode import GpuNode
from tests.integration.harness import TestNode, fresh_node, private_containerd
from tests.integration.scheduling import Scheduler
from tests.waiting import eventually

RULES = CHART / "files/alerts.yaml"
WITHOUT_A_KUBELET = {"TopoletSourceUnreadable"}
DASHBOARD = CHART / "files/dashboard.json"


@contextlib.contextmanager
def prometheus(folder: Path, ports: dict[str, int]) -> Iterator[Prometheus]:
    with contextlib.closing(Prometheus(folder / "prometheus", ports, RULES)) as it:
        yield it


def scraped(it: Prometheus, job: str) -> bool:
    return bool(it.query(f'up{{job="{job}"}} == 1'))


@pytest.fixture
def own_node() -> Iterator[TestNode]:
    """A node with a runtime of its own, which the test kills."""
    with private_containerd() as runtime, fresh_node(runtime) as it:
        yield it


def test_faults_of_a_node_fire_and_end(own_node: TestNode, tmp_path: Path) -> None:
    node, port = own_node, free_port()
    node.start_proxy(f"--http=127.0.0.1:{port}", "--hold-seconds=0.2")
    node.start_agent("--usage=true")
    ports = {"topolet-agent": node.http_port, "topolet-proxy": port}
    with prometheus(tmp_path, ports) as it:
        eventually("both are scraped", lambda: all(scraped(it, job) for job in ports))
        assert it.firing() <= WITHOUT_A_KUBELET

        bad, _ = run_pod(node.proxied, node.spec("bad", "LSE", "999"))
        it.fires("TopoletClaimRefused")
        it.fires("TopoletContainerOnOtherCPUs")
        (refused,) = it.query("topolet_refused_claims")
        labels = {key: refused["metric"][key] for key in ("namespace", "pod", "reason")}
        assert labels == {"namespace": "default", "pod": "bad", "reason": "absent"}
        remove_pod(node.proxied, bad)
        it.ends("TopoletClaimRefused")
        it.ends("TopoletContainerOnOtherCPUs")

        plain, _ = run_pod(node.proxied, node.spec("plain", "LSE"))
        it.fires("TopoletPodWithoutCPUs")
        remove_pod(node.proxied, plain)
        it.ends("TopoletPodWithoutCPUs")

        os.kill(node.agent_pid, signal.SIGSTOP)
        try:
            it.fires("TopoletProcessDown")
            spec = node.spec("lse", "LSE", "1")
            sandbox = run_sandbox(node.proxied, spec)
            with pytest.raises(RpcError):
                create_container(node.proxied, create_request(spec, sandbox))
            it.fires("TopoletHookFailed")
        finally:
            os.kill(node.agent_pid, signal.SIGCONT)
        it.ends("TopoletProcessDown")

        node.containerd.kill()
        it.fires("TopoletAgentNotReady")
        it.fires("TopoletProxyNotReady")
        node.containerd.start()
        it.ends("TopoletAgentNotReady")
        it.ends("TopoletProxyNotReady")
        assert_every_query_works(it)


def test_a_hook_that_fails_open_fires(node: TestNode, tmp_path: Path) -> None:
    """Also the first time, when the series of the counter does not exist yet."""
    port = free_port()
    policy = "--hook-failure-policy=CreateContainer/LSE=ignore"
    node.start_proxy(f"--http=127.0.0.1:{port}", "--hold-seconds=0.2", policy)
    with prometheus(tmp_path, {"topolet-proxy": port}) as it:
        eventually("it is scraped", lambda: scraped(it, "topolet-proxy"))
        assert it.firing() == set()
        run_pod(node.proxied, node.spec("lse", "LSE", "1"))
        it.fires("TopoletHookFailedOpen")


def test_the_alert_of_a_lost_gpu_fires(node: TestNode, tmp_path: Path) -> None:
    gpus = GpuNode(node, gpumachines.a100_hgx())
    gpus.start_agent()
    with prometheus(tmp_path, {"topolet-agent": node.http_port}) as it:
        eventually("the cards are known", lambda: it.query("topolet_device_healthy == 1"))
        assert "TopoletDeviceUnhealthy" not in it.firing()
        gpus.driver.event(0, 79)
        it.fires("TopoletDeviceUnhealthy")


def test_a_scheduler_without_an_api_server_fires(tmp_path: Path) -> None:
    """It is not the leader, and its watches receive no events."""
    config = tmp_path / "kubeconfig"
    name = "it"
    server = {"server": f"https://127.0.0.1:{free_port()}"}
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": name,
                "clusters": [{"name": name, "cluster": server}],
                "users": [{"name": name, "user": {"token": "t"}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            }
        )
    )
    with Scheduler(tmp_path, config) as scheduler:
        scheduler.start()
        with prometheus(tmp_path, {"topolet-scheduler": scheduler.pages_port}) as it:
            it.fires("TopoletNoLeader")
            it.fires("TopoletWatchStale")
            assert "TopoletProcessDown" not in it.firing()


def assert_every_query_works(it: Prometheus) -> None:
    """Prometheus evaluates all queries of the dashboard, also those without metrics here."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    found = {each: it.query(each.replace("$instance", ".*")) for each in queries}
    of_agent = ("build_info", "pool_cpus", "reconciliations_total", "node_used_cpus")
    for name in (*of_agent, "proxy_waiting_calls"):
        assert all(found[each] for each in queries if f"topolet_{name}" in each), name
