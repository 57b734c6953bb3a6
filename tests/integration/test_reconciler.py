"""The agent without a frontend, on real containers."""

import os
import shutil
from pathlib import Path

from agent.model.pod.annotations import RESOURCE_STATUS
from agent.proto import cri_pb2 as pb
from tests.fixtures.pods import (
    create_container,
    create_request,
    remove_pod,
    run_pod,
    run_sandbox,
    start_container,
    update_container,
)
from tests.integration.harness import NO_FULL_PASS, TestNode
from tests.waiting import eventually


def test_owner_gets_its_cpu_and_the_others_the_rest(node: TestNode) -> None:
    node.start_agent(NO_FULL_PASS)
    sandbox, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    be_sandbox, be = run_pod(node.direct, node.spec("be", "BE", kube_class="besteffort"))
    eventually("LSE is on CPU 1", lambda: node.cpus(lse) == "1")
    eventually("LS is on CPU 0", lambda: node.cpus(ls) == "0")
    eventually("BE is on CPU 0", lambda: node.cpus(be) == "0")
    eventually("the pause container of LSE is on CPU 1", lambda: node.sandbox_cpus(sandbox) == "1")
    eventually(
        "the pause container of BE is on CPU 0", lambda: node.sandbox_cpus(be_sandbox) == "0"
    )

    remove_pod(node.direct, sandbox)
    eventually("LS has CPU 1 again", lambda: node.cpus(ls) == "0-1")
    eventually("BE has CPU 1 again", lambda: node.cpus(be) == "0-1")


def test_container_created_before_the_agent_is_corrected_and_counted(node: TestNode) -> None:
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    _, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    assert node.cpus(lse) == node.cpus(ls) == "0-1"
    node.start_agent(NO_FULL_PASS)
    eventually("the CPUs do not overlap", lambda: (node.cpus(lse), node.cpus(ls)) == ("1", "0"))
    assert node.metric("topolet_cpu_overlaps_total") == 1
    assert "pod default/ls runs on CPUs 1 of pod default/lse" in node.log("agent")


def test_container_that_waits_for_its_start_starts_on_the_current_pool(node: TestNode) -> None:
    node.start_agent()
    spec = node.spec("ls", "LS")
    ls = create_container(node.direct, create_request(spec, run_sandbox(node.direct, spec)))
    _, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    eventually(
        "the created container is updated",
        lambda: node.direct.container_status(ls).resources.cpuset == "0",
    )
    start_container(node.direct, ls)
    assert node.cpus(ls) == "0"
    # LS was moved when the sandbox of LSE was listed, perhaps before its container.
    eventually("LSE on its CPU", lambda: node.cpus(lse) == "1")


def test_runtime_does_not_restore_its_old_cpuset_with_its_next_update(node: TestNode) -> None:
    """No frontend changes this update of the CPU shares, and no agent
    runs to correct the result."""
    node.start_agent()
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    owner, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    eventually("LS is on CPU 0", lambda: node.cpus(ls) == "0")
    eventually(
        "the runtime has the cpuset",
        lambda: node.direct.container_status(ls).resources.cpuset == "0",
    )
    eventually(
        "the runtime has the cpuset",
        lambda: node.direct.container_status(lse).resources.cpuset == "1",
    )
    node.kill_agent()
    for container in (ls, lse):
        update_container(node.direct, container, cpu_shares=512)
    assert (node.cpus(ls), node.cpus(lse)) == ("0", "1")

    node.start_agent()
    remove_pod(node.direct, owner)
    eventually("LS is on CPUs 0-1", lambda: node.cpus(ls) == "0-1")
    eventually(
        "the runtime has the cpuset",
        lambda: node.direct.container_status(ls).resources.cpuset == "0-1",
    )


def test_invalid_claim_keeps_the_pool_and_is_reported(node: TestNode) -> None:
    reason = "CPUs 1 belong to pod default/first"
    node.start_agent()
    _, first = run_pod(node.direct, node.spec("first", "LSE", "1"))
    eventually("the first pod is on CPU 1", lambda: node.cpus(first) == "1")
    _, bad = run_pod(node.direct, node.spec("bad", "LSE", "1"))
    eventually("the refused pod is on the pool", lambda: node.cpus(bad) == "0")
    assert node.cpus(first) == "1"
    line = next(line for line in node.log("agent").splitlines() if "pod default/bad" in line)
    assert RESOURCE_STATUS in line
    assert reason in line
    eventually("the metric counts it", lambda: node.metric("topolet_refused_claims") == 1)
    metric = next(
        line
        for line in node.get("/metrics")[1].splitlines()
        if line.startswith("topolet_refused_claims{")
    )
    assert 'namespace="default",pod="bad"' in metric
    assert RESOURCE_STATUS in metric
    assert reason not in metric, "a label has a cause, and no text of the annotation"


def test_containers_on_other_cpus_than_their_annotation_names_are_counted(node: TestNode) -> None:
    """The agent compares the annotations with the kernel's files."""
    node.start_agent()
    numbers = lambda: [  # noqa: E731
        node.metric(f'topolet_containers_with_other_cpus{{source="{source}"}}')
        for source in ("annotation", "checkpoint", "decision")
    ]
    first_sandbox, first = run_pod(node.direct, node.spec("first", "LSE", "1"))
    eventually("the first pod is on CPU 1", lambda: node.cpus(first) == "1")
    _, second = run_pod(node.direct, node.spec("second", "LSE", "1"))
    eventually("the second pod is on the pool", lambda: node.cpus(second) == "0")
    eventually("the metric counts it", lambda: numbers() == [1, 0, 0])
    remove_pod(node.direct, first_sandbox)
    eventually("the second pod is on CPU 1", lambda: node.cpus(second) == "1")
    eventually("no container differs", lambda: numbers() == [0, 0, 0])


def test_kill_and_restart_of_the_agent_changes_nothing(node: TestNode) -> None:
    node.start_agent()
    sandbox, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    shared, ls = run_pod(node.direct, node.spec("ls", "LS"))
    eventually("all cpusets are correct", lambda: (node.cpus(lse), node.cpus(ls)) == ("1", "0"))
    pauses = lambda: (node.sandbox_cpus(sandbox), node.sandbox_cpus(shared))  # noqa: E731
    eventually("the pause containers are settled", lambda: pauses() == ("1", "0"))
    node.kill_agent()
    assert (node.cpus(lse), node.cpus(ls)) == ("1", "0")
    node.start_agent()
    assert (node.cpus(lse), node.cpus(ls)) == ("1", "0")
    assert node.metric("topolet_cgroup_writes_total") == 0
    assert node.metric("topolet_cpu_overlaps_total") == 0


def test_second_agent_is_refused(node: TestNode) -> None:
    node.start_agent()
    second = node.run_cli(
        "agent", "--standalone", f"--state-dir={node.state}", "--http=", "--runtime-endpoint=/x"
    )
    assert second.returncode == 1
    assert f"locked by process {node.agent_pid}" in second.stderr


def test_runtime_update_of_another_field_does_not_restore_old_cpus(
    node: TestNode,
) -> None:
    """containerd writes the cpuset of its record back with every update."""
    node.start_agent(NO_FULL_PASS)
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    _, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    eventually("all cpusets are correct", lambda: (node.cpus(lse), node.cpus(ls)) == ("1", "0"))
    # Otherwise the agent's update may follow the one below, and correct a change that the agent has
    # not detected.
    eventually(
        "the runtime has the cpuset",
        lambda: node.direct.container_status(ls).resources.cpuset == "0",
    )
    # The agent may be slower than the start of the owner, which is an overlap too.
    before = node.metric("topolet_cpu_overlaps_total")
    update_container(node.direct, ls, cpuset_cpus="0-1", cpu_shares=512)
    eventually("the cpuset is corrected", lambda: node.cpus(ls) == "0")
    eventually(
        "the metric counts it", lambda: node.metric("topolet_cpu_overlaps_total") == before + 1
    )


def test_agent_whose_state_folder_is_removed_ends_with_an_error(node: TestNode) -> None:
    """It could not receive notifications any more, and a second agent could start."""
    node.start_agent()
    shutil.rmtree(node.state)
    assert node.agent_exit_code() == 1
    assert "was removed" in node.log("agent")
    node.start_agent()


def test_pod_whose_sandbox_shows_another_limit_than_its_request_shares_the_pool(
    node: TestNode,
) -> None:
    """Without an API server, the agent reads them from the kubelet's request for the sandbox."""

    def runs(name: str, quota_microseconds: int) -> str:
        spec = node.spec(name, "LSR", "1")
        config = spec.config()
        config.linux.resources.cpu_shares = 1024
        config.linux.resources.cpu_period = 100_000
        config.linux.resources.cpu_quota = quota_microseconds
        request = pb.RunPodSandboxRequest(config=config)
        sandbox = node.direct.call("RunPodSandbox", request, pb.RunPodSandboxResponse)
        made = create_container(node.direct, create_request(spec, sandbox.pod_sandbox_id))
        start_container(node.direct, made)
        return made

    node.start_agent(NO_FULL_PASS)
    unequal = runs("unequal", 200_000)
    eventually(
        "the claim is refused", lambda: "requests.cpu is 1, limits.cpu is 2" in node.log("agent")
    )
    equal = runs("equal", 100_000)
    eventually("the other owns its CPU", lambda: node.cpus(equal) == "1")
    eventually("the refused pod has the shared CPUs", lambda: node.cpus(unequal) == "0")


def test_agent_does_not_preempt_the_process_that_notifies_it(node: TestNode) -> None:
    node.start_agent()
    threads = [int(each.name) for each in Path(f"/proc/{node.agent_pid}/task").iterdir()]
    assert len(threads) > 1
    assert {os.sched_getscheduler(each) for each in threads} == {os.SCHED_BATCH}
