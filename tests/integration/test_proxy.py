"""Proxy and agent together on real containers."""

import contextlib
import json
import os
import signal
import threading

import pytest

from agent.cri.client import Cri
from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC
from agent.model.verdict import Code
from agent.rpc.grpc import RpcError
from tests.fixtures.pods import (
    create_container,
    create_request,
    large_environment,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
    update_container,
)
from tests.integration.harness import NO_FULL_PASS, TestNode
from tests.waiting import DEADLINE_SECONDS, eventually


@pytest.fixture
def both(node: TestNode) -> TestNode:
    """A node whose agent and proxy run."""
    node.start_agent(NO_FULL_PASS)
    node.start_proxy()
    return node


def test_containers_run_on_their_cpus_from_their_creation(both: TestNode) -> None:
    sandbox, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    assert both.cpus(lse) == "1"
    _, ls = run_pod(both.proxied, both.spec("ls", "LS"))
    assert both.cpus(ls) == "0"
    _, be = run_pod(both.proxied, both.spec("be", "BE", kube_class="besteffort"))
    assert both.cpus(be) == "0"
    assert both.metric("topolet_cgroup_writes_total") <= 3, "only pause containers are written"
    assert both.metric("topolet_cpu_overlaps_total") == 0

    remove_pod(both.proxied, sandbox)
    eventually("LS has CPU 1 again", lambda: both.cpus(ls) == "0-1")
    eventually("BE has CPU 1 again", lambda: both.cpus(be) == "0-1")


def test_a_deleted_socket_is_made_again_and_open_connections_stay(both: TestNode) -> None:
    run_pod(both.proxied, both.spec("before", "LS"))
    os.unlink(both.cri_socket)
    eventually("the socket is there again", lambda: os.path.exists(both.cri_socket))
    with contextlib.closing(Cri(both.cri_socket, DEADLINE_SECONDS)) as client:
        _, lse = run_pod(client, both.spec("lse", "LSE", "1"))
        assert both.cpus(lse) == "1"
    run_pod(both.proxied, both.spec("after", "LS"))
    assert f"{both.cri_socket} did not exist: the proxy made it again" in both.log("proxy")


def test_a_large_environment_gets_no_cpu_of_an_owner(both: TestNode) -> None:
    """Two ConfigMaps in `envFrom` may have 1 MiB each."""
    _, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    spec = both.spec("large", "LS")
    sandbox = run_sandbox(both.proxied, spec)
    request = create_request(spec, sandbox)
    large_environment(request.config, 1_500_000)
    container = create_container(both.proxied, request)
    start_container(both.proxied, container)
    assert both.cpus(container) == "0"

    # The proxy refuses a request that is larger than a runtime allows, as it cannot decode it.
    request = create_request(spec, sandbox, "huge")
    large_environment(request.config, 17 << 20)
    with pytest.raises(RpcError, match="it could take CPUs 1 of pod default/lse") as refused:
        create_container(both.proxied, request)
    assert refused.value.code == Code.RESOURCE_EXHAUSTED
    assert len(both.direct.containers()) == 2
    assert both.cpus(lse) == "1"
    assert both.metric("topolet_cpu_overlaps_total") == 0


def test_pools_shrink_before_an_owner_is_created(both: TestNode) -> None:
    _, ls = run_pod(both.proxied, both.spec("ls", "LS"))
    assert both.cpus(ls) == "0-1"
    spec = both.spec("lse", "LSE", "1")
    sandbox = run_sandbox(both.proxied, spec)
    lse = create_container(both.proxied, create_request(spec, sandbox))
    assert both.cpus(ls) == "0", "before the owner is started"
    start_container(both.proxied, lse)
    assert both.cpus(lse) == "1"
    assert both.metric("topolet_cpu_overlaps_total") == 0


@pytest.mark.parametrize(("qos", "cpuset", "cpus"), [("LSE", "1", "1"), ("LS", "", "0-1")])
def test_update_keeps_the_cpus_and_applies_its_other_fields(
    both: TestNode, qos: str, cpuset: str, cpus: str
) -> None:
    _, container = run_pod(both.proxied, both.spec("p", qos, cpuset))
    update_container(
        both.proxied,
        container,
        cpuset_cpus="0",
        cpu_shares=512,
        cpu_period=100_000,
        cpu_quota=150_000,
        memory_limit_in_bytes=64 << 20,
    )
    assert both.cpus(container) == cpus
    assert both.kernel_value(container, "cpu", "cpu.shares") == "512"
    quota = "-1" if cpuset else "150000"  # an owner does not have a quota
    assert both.kernel_value(container, "cpu", "cpu.cfs_quota_us") == quota
    assert both.kernel_value(container, "memory", "memory.limit_in_bytes") == str(64 << 20)


def test_label_and_annotation_lift_no_limit_of_a_burstable_pod_next_to_an_lsr_pod(
    both: TestNode,
) -> None:
    """BE pods run on the CPUs of LSR pods, with the weight of the BestEffort hierarchy."""
    _, lsr = run_pod(both.proxied, both.spec("lsr", "LSR", "1"))
    amounts = {"kubernetes.io/batch-cpu": "64k", "kubernetes.io/batch-memory": "1Ti"}
    containers = {"main": {"requests": amounts, "limits": amounts}}
    notes = {EXTENDED_RESOURCE_SPEC: json.dumps({"containers": containers})}
    for name, runtime in (("through-proxy", both.proxied), ("past-proxy", both.direct)):
        spec = both.spec(name, "BE", annotations=notes)
        request = create_request(spec, run_sandbox(runtime, spec))
        resources = request.config.linux.resources
        resources.cpu_shares, resources.cpu_period, resources.cpu_quota = 102, 100_000, 50_000
        resources.memory_limit_in_bytes = 64 << 20
        container = create_container(runtime, request)
        start_container(runtime, container)
        eventually("it is on the LS pool", lambda c=container: both.cpus(c) == "0")
        assert both.kernel_value(container, "cpu", "cpu.shares") == "102"
        assert both.kernel_value(container, "cpu", "cpu.cfs_quota_us") == "50000"
        assert both.kernel_value(container, "memory", "memory.limit_in_bytes") == str(64 << 20)
    _, be = run_pod(both.proxied, both.spec("be", "BE", kube_class="besteffort"))
    assert (both.cpus(lsr), both.cpus(be)) == ("1", "0-1")


def test_container_created_without_the_proxy_is_corrected(both: TestNode) -> None:
    _, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    _, ls = run_pod(both.direct, both.spec("ls", "LS"))
    eventually("the cpuset is corrected", lambda: both.cpus(ls) == "0")
    assert both.cpus(lse) == "1"


def test_without_the_agent_no_known_owners_cpu_is_given_to_others(both: TestNode) -> None:
    _, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    both.kill_agent()
    _, ls = run_pod(both.proxied, both.spec("ls", "LS"))
    assert both.cpus(ls) == "0"
    thief = both.spec("thief", "LSE", "1")
    sandbox = run_sandbox(both.proxied, thief)
    with pytest.raises(RpcError):
        create_container(both.proxied, create_request(thief, sandbox))
    both.kill_proxy()
    both.start_proxy()
    _, late = run_pod(both.proxied, both.spec("late", "LS"))
    assert both.cpus(late) == "0"
    assert both.cpus(lse) == "1"


POINTS = ("sandbox", "create", "start", "end")


@pytest.mark.parametrize("victim", ["proxy", "both"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_ends_in_the_same_state(
    both: TestNode, victim: str, point: str
) -> None:
    """An LSE pod starts and ends, with a SIGKILL and a restart before one of the steps.
    tests/faults kills the agent alone."""

    def kill_and_restart() -> None:
        if victim == "both":
            both.kill_agent()
        both.kill_proxy()
        both.start_proxy()
        if victim == "both":
            both.start_agent(NO_FULL_PASS)

    _, ls = run_pod(both.proxied, both.spec("ls", "LS"))
    spec = both.spec("lse", "LSE", "1")
    if point == "sandbox":
        kill_and_restart()
    sandbox = run_sandbox(both.proxied, spec)
    if point == "create":
        kill_and_restart()
    lse = create_container(both.proxied, create_request(spec, sandbox))
    if point == "start":
        kill_and_restart()
    assert both.cpus(ls) == "0"
    start_container(both.proxied, lse)
    assert (both.cpus(lse), both.cpus(ls)) == ("1", "0")
    if point == "end":
        kill_and_restart()
    assert both.metric("topolet_cpu_overlaps_total") == 0
    remove_pod(both.proxied, sandbox)
    eventually("LS has CPU 1 again", lambda: both.cpus(ls) == "0-1")


def test_a_pod_that_was_removed_before_the_agent_saw_it_has_no_claim(both: TestNode) -> None:
    os.kill(both.agent_pid, signal.SIGSTOP)
    remove_pod(both.direct, run_sandbox(both.proxied, both.spec("removed", "LSE", "1")))
    os.kill(both.agent_pid, signal.SIGCONT)
    _, next_owner = both.run_retrying(both.proxied, both.spec("next", "LSE", "1"))
    assert both.cpus(next_owner) == "1"


def test_no_owner_starts_while_a_container_is_on_its_cpu(both: TestNode) -> None:
    """Owners and sharers are created at the same time, from several connections."""
    seen: list[str] = []
    creating = threading.Event()

    def sharers(number: int) -> None:
        cri = Cri(both.cri_socket, DEADLINE_SECONDS)
        with contextlib.closing(cri):
            turn = 0
            while not creating.is_set():
                turn += 1
                # On cgroup v1 the start fails if the pod's group has shrunk since the creation.
                sandbox, _ = both.run_retrying(cri, both.spec(f"ls-{number}-{turn}", "LS"))
                remove_pod(cri, sandbox)

    threads = [threading.Thread(target=sharers, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(5):
            spec = both.spec(f"lse-{turn}", "LSE", "1")
            sandbox, lse = both.run_retrying(both.proxied, spec)
            seen.append(both.cpus(lse))
            remove_pod(both.proxied, sandbox)
    finally:
        creating.set()
        for thread in threads:
            thread.join()
    assert seen == ["1"] * 5
    assert both.metric("topolet_cpu_overlaps_total") == 0


def test_restore_restores_every_value(both: TestNode) -> None:
    first, lse = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    _, ls = run_pod(both.proxied, both.spec("ls", "LS"))
    _, be = run_pod(both.direct, both.spec("be", "BE"))
    waiting = both.spec("waiting", "LS")
    created = create_container(
        both.proxied, create_request(waiting, run_sandbox(both.proxied, waiting))
    )
    eventually("all cpusets are correct", lambda: (both.cpus(ls), both.cpus(be)) == ("0", "0"))
    refused = both.restore()
    assert refused.returncode == 1
    assert "agent.lock is locked by process" in refused.stderr

    both.stop_agent()
    assert (both.cpus(lse), both.cpus(ls)) == ("1", "0"), "an agent that stops does not change them"
    done = both.restore()
    assert done.returncode == 0, done.stderr
    assert {both.cpus(each) for each in (lse, ls, be)} == {"0-1"}
    assert both.sandbox_cpus(first) == "0-1"
    start_container(both.direct, created)
    assert both.cpus(created) == "0-1"
    assert "0 cpusets restored" in both.restore().stdout
    _, later = run_pod(both.proxied, both.spec("later", "LS"))
    assert both.cpus(later) == "0-1", "the proxy changes no request any more"


def test_restore_handles_a_cpuset_that_the_proxy_set_without_the_agent(both: TestNode) -> None:
    """The proxy sets the cpuset of a container; an agent that starts later changes it."""
    first, _ = run_pod(both.proxied, both.spec("lse", "LSE", "1"))
    both.kill_agent()
    _, ls = run_pod(both.proxied, both.spec("ls", "LS"))
    assert both.cpus(ls) == "0"
    both.start_agent(NO_FULL_PASS)
    remove_pod(both.proxied, first)
    eventually("LS has all CPUs", lambda: both.cpus(ls) == "0-1")
    run_pod(both.proxied, both.spec("again", "LSE", "1"))
    eventually("LS is on CPU 0", lambda: both.cpus(ls) == "0")
    both.stop_agent()
    done = both.restore()
    assert done.returncode == 0, done.stderr
    assert both.cpus(ls) == "0-1"
