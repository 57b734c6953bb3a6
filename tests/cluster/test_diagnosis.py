"""Faults of a whole cluster, one at a time, as the engineer on call sees them.

For each fault an alert of the chart fires in a real Prometheus that scrapes agent, proxy and
scheduler. `kubectl topolet doctor NODE`, an Event or a metric, and docs/troubleshooting.md name the
fault. The GPUs are those of a fake driver.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from agent.allocate.refusal import Reason
from agent.kubelet import cpu_manager_state
from agent.node.change_log import (
    CLAIM_NOT_HONORED,
    COMPETING_WRITER,
    KUBELET_INCOMPATIBLE,
    KUBELET_POLICY_CHANGED,
)
from agent.node.drift import DriftKind
from agent.node.node_findings import CHANGES_SECONDS, WATCH_SECONDS, NodeCode
from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.cluster.controlplane import ADDRESS as ADDRESS_OF_SERVER
from tests.cluster.controlplane import SERVICE_ADDRESS
from tests.cluster.machine import ProgramError
from tests.cluster.node import RUNTIME
from tests.cluster.plugin import ROOT, run
from tests.cluster.pods import manifest
from tests.deploy.chart import CHART, rendered
from tests.fixtures.prometheus import PrometheusApi, configured, job_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("no_pods")]

RULES = CHART / "files/alerts.yaml"
ADDRESS = "127.0.0.1:9390"
"""The address of Prometheus in the world."""
SLOW_PORT = "16443"
TO_EXTENDER = ("-p", "tcp", "--dport", "9444", "-j", "REJECT", "--reject-with", "tcp-reset")
CPU_STATE = "/var/lib/kubelet/cpu_manager_state"
NETWORK = "/etc/cni/net.d/10-pods.conflist"
(END_AT_ONCE,) = re.findall(
    "^crictl stop .*$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE
)
CRICTL = f"crictl --runtime-endpoint={RUNTIME}"
_PAGE = """export PYTHONPATH="$1" KUBECONFIG="$2" HOME=/tmp
folder=$3
shift 3
rm -f "$folder/page"
"$@" --no-open --port=0 >"$folder/page" 2>"$folder/err" &
for _ in $(seq 150); do [ -s "$folder/page" ] && break; sleep 0.2; done
python3 -c 'import sys, urllib.request as it
print(it.urlopen(sys.argv[1] + "/state").read().decode())' "$(cat "$folder/page")"
kill $!
wait $!
echo $? >"$folder/code"
"""
"""Reads the page that the command forwards, and ends the command."""


def findings(cluster: Cluster, *, warnings: bool = False) -> set[str]:
    """The codes and kinds of doctor's findings that are errors, and of its warnings on request."""
    code, text, error = run(cluster, "doctor", HOST, "-o", "json")
    assert text, error
    found = json.loads(text)
    everything = found["node"] + found["findings"]
    errors = [each for each in everything if each["severity"] == "error"]
    assert code == (2 if found["seen"] is None else bool(errors)), error
    return {each.get("code") or each["kind"] for each in (everything if warnings else errors)}


def check_finding(cluster: Cluster, code: str, seconds: float = 60.0) -> None:
    """Waits until doctor reports the code, and checks that the document has it."""
    cluster.eventually(
        f"doctor finds {code}", lambda: code in findings(cluster, warnings=True), seconds
    )
    assert f"`{code}`" in (ROOT / "docs/troubleshooting.md").read_text()


@pytest.fixture
def healthy(installed: Cluster) -> Iterator[Cluster]:
    """A cluster in which doctor has no findings, before and after the test."""
    installed.eventually("doctor finds nothing", lambda: findings(installed) == set())
    yield installed
    installed.kubectl("delete", "pods", "--all", "-n", "default", "--grace-period=1")
    installed.wait_agent_ready(HOST)
    installed.eventually("doctor finds nothing", lambda: findings(installed) == set(), 60)


@pytest.fixture
def alerts(healthy: Cluster) -> Iterator[PrometheusApi]:
    """The rules of the chart, on what is scraped in the cluster."""
    schedulers = healthy.metrics_addresses("scheduler")
    with scraped(healthy) as it:
        healthy.eventually("no alert fires", lambda: it.firing() == set())
        yield it
        if healthy.metrics_addresses("scheduler") == schedulers:
            healthy.eventually("no alert is left", lambda: it.firing() == set())


@contextlib.contextmanager
def scraped(cluster: Cluster) -> Iterator[PrometheusApi]:
    """A Prometheus that scrapes the processes that run at its start."""
    world, machine = cluster.control.world, cluster.nodes[HOST].machine
    targets = {
        "topolet-agent": cluster.metrics_addresses("agent"),
        "topolet-scheduler": cluster.metrics_addresses("scheduler"),
    }
    folder = world.folder / "prometheus"
    folder.mkdir()
    command = configured(
        folder, targets, RULES, WATCH_SECONDS - 20, _jobs_of_proxies(cluster, folder)
    )
    it = PrometheusApi(ADDRESS, lambda url: machine.run("busybox", "wget", "-q", "-O-", url))
    machine.start("prometheus", *command, f"--web.listen-address={ADDRESS}")
    number = sum(map(len, targets.values())) + len(cluster.nodes)
    try:
        cluster.eventually("all are scraped", lambda: len(_up(it)) == number)
        yield it
    finally:
        machine.end("prometheus")
        shutil.rmtree(folder)


def _jobs_of_proxies(cluster: Cluster, folder: Path) -> list[dict[str, object]]:
    """By the chart's ScrapeConfig, which finds them by their Nodes."""
    nodes = [cluster.get("node", name) or {} for name in cluster.nodes]
    values = {"pools": [{"mode": "proxy"}], "scrapeConfig": {"enabled": True}}
    return [
        job_of(each, nodes) for each in rendered(folder, values) if each["kind"] == "ScrapeConfig"
    ]


def _up(it: PrometheusApi) -> list[object]:
    try:
        return list(it.query("up == 1"))
    except ProgramError:
        return []


def wait_for_doctor(cluster: Cluster) -> None:
    """Waits until doctor runs: a kubelet that starts does not know its pods yet."""
    cluster.eventually("the kubelet knows the agent", lambda: run(cluster, "doctor", HOST)[1])


def event_of_node(cluster: Cluster, reason: str, words: str) -> None:
    """Waits for an Event of the Node, which docs/monitoring.md explains."""
    about = f"reason={reason},involvedObject.kind=Node,involvedObject.name={HOST}"

    def reported() -> bool:
        found = cluster.objects("events", f"--field-selector={about}")
        return any(words in each.get("message", "") for each in found)

    cluster.eventually(f"an Event {reason} of the Node", reported, 120)
    assert f"| `{reason}` |" in (ROOT / "docs/monitoring.md").read_text()


@contextlib.contextmanager
def written(cluster: Cluster, path: str, text: str) -> Iterator[None]:
    """Writes the file, and restores it at the end of the block."""
    machine = cluster.nodes[HOST].machine
    before = machine.read(path).get(path)
    machine.write(path, text)
    try:
        yield
    finally:
        if before is None:
            machine.remove(path)
        else:
            machine.write(path, before)


def test_a_node_is_examined_and_drawn_from_outside(healthy: Cluster) -> None:
    cluster = healthy
    cluster.pod("lse", qos="LSE", cpu=1)
    code, text, error = run(cluster, "doctor", HOST)
    assert (code, error) == (0, ""), text
    assert "default/lse main" in text
    assert "runtime: containerd 2" in text
    _, text, _ = run(cluster, "doctor", HOST, "-o", "json")
    (own,) = [each for each in json.loads(text)["seen"] if each["title"] == "default/lse main"]
    assert own["processes"] == own["group"], "found from the agent's container"
    code, text, _ = run(cluster, "topology", HOST, "--owners")
    assert code == 0
    assert "default/lse" in text
    code, text, error = run(cluster, "top", HOST, "--once")
    assert (code, error) == (0, ""), text
    assert "a default/lse" in text
    assert "! the use of pods is unknown" not in text
    code, text, error = run(cluster, "topology", "n9")
    assert (code, text, error) == (2, "", "topolet: node n9 does not exist\n")
    page = json.loads(run(cluster, "page", HOST, script=_PAGE)[1])
    assert (page["node"], page["pods"][0]["title"]) == (HOST, "default/lse")
    path = cluster.control.world.folder / "bundle.tar.gz"
    code, _, error = run(cluster, "doctor", HOST, "--bundle", str(path))
    assert code == 0, error
    assert path.stat().st_size > 1000


def test_a_claim_that_cannot_be_honoured(healthy: Cluster, alerts: PrometheusApi) -> None:
    """A scheduler's Binding names a CPU that the machine does not have."""
    cluster = healthy
    cluster.create(manifest("wrong", qos="LSE", cpu=1, scheduler="nobody"))
    cluster.bind_as_scheduler("wrong", HOST, "90")
    cluster.eventually("an Event reports it", lambda: cluster.events("wrong", CLAIM_NOT_HONORED))
    cluster.wait_running("wrong")
    check_finding(cluster, DriftKind.CLAIM)
    alerts.fires("TopoletClaimRefused")
    (refused,) = alerts.query("topolet_refused_claims")
    assert refused["metric"]["pod"] == "wrong"
    cluster.delete_pod("wrong")


@pytest.mark.long
def test_a_program_that_keeps_changing_cpus(installed: Cluster) -> None:
    """The agent undoes each change at once, so that no look at the node shows it. Alert and finding
    last five minutes after it."""
    cluster = installed
    cluster.pod("lse", qos="LSE", cpu=1)
    cluster.pod("ls", qos="LS", cpu="100m")
    with scraped(cluster) as alerts, cluster.competing("ls", "0-1"):
        alerts.fires("TopoletOtherWriterOfCPUs")
        alerts.fires("TopoletCPUOverlap")
        check_finding(cluster, NodeCode.COMPETING)
        event_of_node(cluster, COMPETING_WRITER, "cpuset.cpus of default/ls main")
    cluster.eventually(
        "doctor finds nothing", lambda: findings(cluster) == set(), CHANGES_SECONDS + 60
    )


@pytest.mark.long
def test_a_hung_agent_behind_an_installed_proxy_is_replaced(
    healthy: Cluster, tmp_path: Path
) -> None:
    """The probes and the time to end are those of the chart."""
    cluster, words = healthy, ("-n", NAMESPACE, "daemonset/topolet-agent")
    found = rendered(tmp_path, {"pools": [{"mode": "proxy", "installProxy": True}]})
    (chart,) = (each for each in found if each["kind"] == "DaemonSet")
    spec = chart["spec"]["template"]["spec"]
    (agent,) = spec["containers"]
    probes = {name: agent[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    patch = {
        "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"],
        "containers": [{"name": "agent", **probes}],
    }
    cluster.kubectl("patch", *words, "-p", json.dumps({"spec": {"template": {"spec": patch}}}))
    try:
        cluster.kubectl("rollout", "status", *words, "--timeout=100s")
        machine, restarts = cluster.nodes[HOST].machine, cluster.agent_restarts(HOST)
        machine.run("kill", "-STOP", cluster.agent_pid(HOST))
        cluster.eventually(
            "the agent is restarted", lambda: cluster.agent_restarts(HOST) > restarts, 120
        )
        cluster.wait_agent_ready(HOST)

        # As documented: with a time of its own, and on the node for a pod that is being deleted.
        for ended_on_node in (False, True):
            pod = cluster.agent_pod(HOST)
            machine.run("kill", "-STOP", cluster.agent_pid(HOST))
            delete = ("delete", "pod", "-n", NAMESPACE, pod, "--wait=false")
            cluster.kubectl(*delete, *([] if ended_on_node else ["--grace-period=10"]))
            if ended_on_node:
                code, _, error = run(cluster, "doctor", HOST)
                assert code == 2
                assert f"pod {NAMESPACE}/{pod}: it is being deleted, and has until" in error
                machine.run("sh", "-ec", END_AT_ONCE.replace("crictl", CRICTL))
            cluster.eventually("it has ended", partial(absent, cluster, pod), 60)
            cluster.wait_agent_ready(HOST)
    finally:
        cluster.kubectl("rollout", "undo", *words)
        cluster.kubectl("rollout", "status", *words, "--timeout=100s")
        cluster.wait_agent_ready(HOST)


def absent(cluster: Cluster, pod: str) -> bool:
    return cluster.get("pod", pod, NAMESPACE) is None


@pytest.mark.long
def test_a_state_of_another_policy(healthy: Cluster, alerts: PrometheusApi) -> None:
    """The kubelet does not start with this file, and its node is not Ready."""
    text = healthy.nodes[HOST].machine.read(CPU_STATE)[CPU_STATE]
    state = cpu_manager_state.decode(text.encode())
    other = cpu_manager_state.encode(msgspec.structs.replace(state, policy="static"))
    with written(healthy, CPU_STATE, other.decode()):
        check_finding(healthy, NodeCode.KUBELET_POLICY)
        alerts.fires("TopoletSourceUnreadable")
        event_of_node(healthy, KUBELET_INCOMPATIBLE, "its state file has the policy static")


@pytest.mark.long
def test_another_policy_of_the_kubelet(healthy: Cluster) -> None:
    """The policy is changed as documented, with a new state file: only an Event reports it."""
    node = healthy.nodes[HOST]
    node.restart_kubelet(topologyManagerPolicy="best-effort")
    try:
        event_of_node(healthy, KUBELET_POLICY_CHANGED, "topologyManagerPolicy best-effort")
        wait_for_doctor(healthy)
        healthy.eventually("doctor finds nothing", lambda: findings(healthy) == set())
    finally:
        node.restart_kubelet(topologyManagerPolicy=None)
    wait_for_doctor(healthy)


@contextlib.contextmanager
def patched_agent(cluster: Cluster, spec: dict[str, object]) -> Iterator[None]:
    """Merges this into the spec of the DaemonSet's pods during the block."""
    words = ("-n", NAMESPACE, "daemonset/topolet-agent")
    cluster.kubectl("patch", *words, "-p", json.dumps({"spec": {"template": {"spec": spec}}}))
    try:
        yield
    finally:
        cluster.kubectl("rollout", "undo", *words)


def wrong_runtime_path(cluster: Cluster) -> AbstractContextManager[None]:
    wrong = {"path": "/run/no-runtime", "type": "Directory"}
    return patched_agent(cluster, {"volumes": [{"name": "runtime", "hostPath": wrong}]})


def unselected_node(cluster: Cluster) -> AbstractContextManager[None]:
    return patched_agent(cluster, {"nodeSelector": {"topolet.test/none": "x"}})


@contextlib.contextmanager
def no_free_address(cluster: Cluster) -> Iterator[None]:
    """Pods end, and new ones get no IP: the only address is that of the gateway."""
    configuration = json.loads(cluster.nodes[HOST].machine.read(NETWORK)[NETWORK])
    ((addresses,),) = configuration["plugins"][0]["ipam"]["ranges"]
    gateway = str(ipaddress.ip_network(addresses["subnet"])[1])
    addresses |= {"rangeStart": gateway, "rangeEnd": gateway}
    with written(cluster, NETWORK, json.dumps(configuration)):
        cluster.delete_component("agent")
        yield


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "reason", "event", "told"),
    [
        (unselected_node, Reason.NO_AGENT, "", "does the DaemonSet select other nodes?"),
        (wrong_runtime_path, Reason.AGENT_NOT_READY, "FailedMount", "ContainerCreating"),
        (
            no_free_address,
            Reason.AGENT_NOT_READY,
            "FailedCreatePodSandBox",
            "ContainerCreating",
        ),
    ],
)
def test_an_agent_that_never_started(
    healthy: Cluster,
    fault: Callable[[Cluster], AbstractContextManager[None]],
    reason: str,
    event: str,
    told: str,
) -> None:
    """A process that does not run has no metrics."""
    cluster, query = healthy, f'topolet_scheduler_node_without_agent{{node="{HOST}"}}'
    with scraped(cluster) as alerts:
        with fault(cluster):
            alerts.fires("TopoletNodeWithoutAgent", 120)
            cluster.eventually(
                "the reason is known",
                lambda: {each["metric"]["reason"] for each in alerts.query(query)} == {reason},
            )
            code, _, error = run(cluster, "doctor", HOST)
            assert code == 2
            assert told in error
            if event:
                about = f"reason={event},involvedObject.name={cluster.agent_pod(HOST)}"
                cluster.eventually(
                    f"an Event {event} of the pod",
                    lambda: cluster.objects(
                        "events", f"--field-selector={about}", namespace=NAMESPACE
                    ),
                )
                assert f"`{event}`" in (ROOT / "docs/monitoring.md").read_text()
        cluster.wait_agent_ready(HOST)
        alerts.ends("TopoletNodeWithoutAgent")


@pytest.mark.long
def test_an_extender_that_is_not_reached(healthy: Cluster, alerts: PrometheusApi) -> None:
    machine = healthy.nodes[HOST].machine
    rules = [
        (chain, "-d", address.rpartition(":")[0], *TO_EXTENDER)
        for chain in ("FORWARD", "OUTPUT")
        for address in healthy.metrics_addresses("scheduler")
    ]
    for each in rules:
        machine.run("iptables", "-I", *each)
    try:
        healthy.create(manifest("lse", qos="LSE", cpu=1))
        healthy.eventually(
            "the pod's condition has the error",
            lambda: "/filter" in healthy.unschedulable_message("lse"),
        )
        alerts.fires("TopoletExtenderNotCalled", 300)
    finally:
        for each in rules:
            machine.run("iptables", "-D", *each)
    healthy.wait_running("lse", seconds=120)


@pytest.mark.long
def test_an_api_server_that_is_down(healthy: Cluster, alerts: PrometheusApi) -> None:
    """Without the API server, `kubectl topolet doctor` cannot run."""
    with healthy.without_api_server():
        alerts.fires("TopoletClusterUnreachable")


def test_an_api_server_that_is_slow(healthy: Cluster, alerts: PrometheusApi) -> None:
    """A delay of a tenth of a second for each message delays everything. A delay above the timeout
    of a request is like an outage."""
    consequences = {"TopoletClusterUnreachable", "TopoletNoLeader"}
    with slowed(healthy, "agent", "scheduler") as delay:
        healthy.pod("late", qos="LSE", cpu=1)
        assert healthy.allocated("late") == healthy.cpus_of("late")
        shared = healthy.agent_metric(HOST, "topolet_pool_cpus")
        # The rules have no `for` here, so that one missed scrape makes an alert fire.
        healthy.eventually("neither fires", lambda: not alerts.firing() & consequences, 60)
        delay.write_text("20")
        healthy.delete_pod("late")  # the agent has something to report
        check_finding(healthy, NodeCode.WATCH)
        for alert in sorted(consequences):
            alerts.fires(alert)
    healthy.eventually(
        "the agent releases the CPUs of the deleted pod",
        lambda: healthy.agent_metric(HOST, "topolet_pool_cpus") > shared,
    )


@contextlib.contextmanager
def slowed(cluster: Cluster, *components: str) -> Iterator[Path]:
    """Requests of these pods to the API server are relayed with a delay, by the seconds in the
    file."""
    machine, folder = cluster.nodes[HOST].machine, cluster.control.world.folder
    delay = folder / "delay"
    delay.write_text("0.1")
    program = Path(__file__).with_name("slow.py")
    machine.start("slow", sys.executable, program, SLOW_PORT, f"{ADDRESS_OF_SERVER}:6443", delay)
    tcp = ("-p", "tcp", "--dport")
    rules = []
    for address in (
        each.rpartition(":")[0] for of in components for each in cluster.metrics_addresses(of)
    ):
        relayed = ("-d", SERVICE_ADDRESS, *tcp, "443", "-j", "REDIRECT", "--to-ports", SLOW_PORT)
        ended = (*tcp, "6443", "-j", "REJECT", "--reject-with", "tcp-reset")
        rules.append(("nat", "PREROUTING", "-s", address, *relayed))
        rules += [("filter", chain, "-s", address, *ended) for chain in ("FORWARD", "INPUT")]
    for table, *rule in rules:
        machine.run("iptables", "-t", table, "-I", *rule)
    try:
        yield delay
    finally:
        for table, *rule in rules:
            machine.run("iptables", "-t", table, "-D", *rule)
        machine.end("slow")


@pytest.mark.long
def test_a_watch_that_gets_nothing(healthy: Cluster, alerts: PrometheusApi) -> None:
    """The agent's packets are dropped, as by a firewall that has lost the connection, which is not
    closed. kubectl exec does not need it."""
    cluster = healthy
    pod = cluster.get("pod", cluster.agent_pod(HOST), NAMESPACE)
    assert pod is not None
    machine = cluster.nodes[HOST].machine
    rule = ("FORWARD", "-s", pod["status"]["podIP"], "-p", "tcp", "--dport", "6443", "-j", "DROP")
    rules = [rule, ("INPUT", *rule[1:])]
    for each in rules:
        machine.run("iptables", "-I", *each)
    try:
        check_finding(cluster, NodeCode.WATCH, WATCH_SECONDS + 120)
        alerts.fires("TopoletWatchStale", WATCH_SECONDS)
    finally:
        for each in rules:
            machine.run("iptables", "-D", *each)
