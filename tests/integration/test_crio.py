"""Proxy, NRI plugin and agent on a real CRI-O."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agent.cri.client import Cri
from agent.hooks.agent_client import Notifier
from agent.model import snapshot as snapshots
from agent.model.notifications import SOCKET
from agent.proto import cri_pb2 as pb
from agent.proxy import gate as hooks
from tests.fixtures.cgroups import MOUNTS, make_cgroup
from tests.fixtures.crio import WORKLOAD, Crio
from tests.fixtures.pods import (
    kill_container,
    remove_pod,
    run_pod,
    update_container,
)
from tests.integration.harness import (
    NO_FULL_PASS,
    TestNode,
    fresh_node,
    kernel_group,
    private_crio,
)
from tests.integration.nri_node import nri_node
from tests.waiting import eventually

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def crio() -> Iterator[Crio]:
    with private_crio() as runtime:
        yield runtime


@pytest.fixture
def node(crio: Crio) -> Iterator[TestNode]:
    """A node of CRI-O; the test starts agent and frontend."""
    with fresh_node(crio) as it:
        yield it
        crio.remove_all_pods()


@pytest.fixture
def both(node: TestNode) -> TestNode:
    """A node whose agent and proxy run."""
    node.start_agent(NO_FULL_PASS)
    node.start_proxy()
    return node


def end_pod(cri: Cri, sandbox: str, container: str) -> None:
    """Ends a pod as a kubelet does, without a grace period."""
    kill_container(cri, container)
    remove_pod(cri, sandbox)


def processes_on(node: TestNode, cpu: int) -> set[int]:
    """The processes of all pods of the node that may run on the CPU."""
    version2 = (MOUNTS / "cgroup.procs").exists()
    top = (MOUNTS if version2 else MOUNTS / "cpuset") / node.cgroup_root.lstrip("/")
    return {
        pid
        for path in top.rglob("cgroup.procs")
        for pid in map(int, path.read_text().split())
        if cpu in os.sched_getaffinity(pid)
    }


def test_containers_run_on_their_cpus_from_their_creation(both: TestNode) -> None:
    sandbox, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    assert both.cpus(lse) == "1"
    _, ls = run_pod(both.proxied, both.spec("ls", "LS"))
    assert both.cpus(ls) == "0"
    _, be = run_pod(both.proxied, both.spec("be", "BE", kube_class="besteffort"))
    assert both.cpus(be) == "0"
    assert both.metric("topolet_cpu_overlaps_total") == 0
    assert kernel_group(both.direct.container_status(lse).pid, "cpuset").name == f"crio-{lse}"

    end_pod(both.proxied, sandbox, lse)
    eventually("LS has CPU 1 again", lambda: both.cpus(ls) == "0-1")
    eventually("BE has CPU 1 again", lambda: both.cpus(be) == "0-1")


def test_no_process_of_another_pod_may_run_on_an_owners_cpu(both: TestNode) -> None:
    """CRI-O's monitors are in the pods' cgroups; `infra_ctr_cpuset` pins them to CPU 0."""
    _, ls = run_pod(both.proxied, both.spec("ls", "LS"))
    _, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    owner = both.direct.container_status(lse).pid
    eventually("only the owner may run on CPU 1", lambda: processes_on(both, 1) == {owner})
    assert both.direct.container_status(ls).pid in processes_on(both, 0)


def test_containers_are_created_while_the_agent_is_away_after_the_notification(
    both: TestNode,
) -> None:
    """CRI-O starts the monitor on CPU 0, so the cgroup of an owner of CPU 1 needs CPU 0."""
    spec = both.spec("lse", "LSE", "1")
    make_cgroup(spec.cgroup_parent())
    run_pod(both.proxied, both.spec("ls", "LS"))
    request = pb.RunPodSandboxRequest(config=spec.config())
    notifier = Notifier(str(both.state / SOCKET))
    assert notifier.notify(hooks.run_pod_sandbox(request.SerializeToString()))
    notifier.close()
    snapshot = both.state / "snapshot.json"
    eventually("CPU 1 has an owner", lambda: snapshots.decode(snapshot.read_bytes()).owners)
    both.kill_agent()
    _, lse = run_pod(both.proxied, spec)
    assert both.cpus(lse) == "1"


def test_an_update_keeps_the_cpus(both: TestNode) -> None:
    _, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    update_container(both.proxied, lse, cpuset_cpus="0", cpu_shares=512)
    assert both.cpus(lse) == "1"


def test_a_container_created_without_the_proxy_is_corrected(both: TestNode) -> None:
    """The agent uses events of cgroups, because CRI-O sends it none."""
    _, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    _, ls = run_pod(both.direct, both.spec("ls", "LS"))
    eventually("the cpuset is corrected", lambda: both.cpus(ls) == "0")
    assert both.cpus(lse) == "1"


def test_a_workload_of_the_runtime_is_corrected(both: TestNode) -> None:
    """CRI-O sets the cpuset of a workload after the proxy has."""
    _, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    spec = both.spec("workload", "LS", annotations={WORKLOAD: ""})
    _, workload = run_pod(both.proxied, spec)
    eventually("the cpuset is corrected", lambda: both.cpus(workload) == "0")
    assert both.cpus(lse) == "1"


def test_a_restarted_agent_finds_the_containers(both: TestNode) -> None:
    _, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    both.kill_agent()
    _, ls = run_pod(both.direct, both.spec("ls", "LS"))
    assert both.cpus(ls) == "0-1"
    both.start_agent(NO_FULL_PASS)
    eventually("the cpuset is corrected", lambda: both.cpus(ls) == "0")
    assert both.cpus(lse) == "1"
    both.stop_agent()
    done = both.restore()
    assert done.returncode == 0, done.stderr
    assert {both.cpus(each) for each in (lse, ls)} == {"0-1"}


def test_the_nri_plugin_does_the_same(crio: Crio) -> None:
    with nri_node(crio) as nri:
        node = nri.node
        node.start_agent(NO_FULL_PASS)
        nri.start_plugin()
        _, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
        assert node.cpus(lse) == "1"
        _, ls = run_pod(node.direct, node.spec("ls", "LS"))
        assert node.cpus(ls) == "0"
        assert node.metric("topolet_cpu_overlaps_total") == 0
        crio.remove_all_pods()
