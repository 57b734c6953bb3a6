"""CPUs that a kubelet with the CPU manager policy none reserves."""

from __future__ import annotations

from tests.fixtures import image
from tests.fixtures.pods import (
    create_container,
    create_request,
    run_pod,
    run_sandbox,
    start_container,
)
from tests.integration.harness import TestNode
from tests.waiting import eventually


def start_agent(node: TestNode) -> None:
    """CPU 0 is reserved."""
    config = node.folder / "reserving.yaml"
    config.write_text("{kind: KubeletConfiguration, reservedSystemCPUs: '0'}\n")
    node.start_agent(f"--kubelet-config={config}", "--period-seconds=1")
    node.start_proxy()


def test_no_pod_owns_a_reserved_cpu_under_the_policy_none(node: TestNode) -> None:
    start_agent(node)
    _, claimant = run_pod(node.proxied, node.spec("lse", "LSE", "0"))
    _, owner = run_pod(node.proxied, node.spec("other", "LSE", "1"))
    assert (node.cpus(claimant), node.cpus(owner)) == ("0", "1")
    assert node.metric("topolet_claim_refusals_total") == 1
    report = (node.state / "objects/noderesourcetopology/node-a.yaml").read_text()
    assert '"policy":"none","reservedCPUs":"0"' in report


def test_a_be_pod_begins_on_the_reserved_cpu_and_leaves_it_when_it_is_full(node: TestNode) -> None:
    start_agent(node)
    spec = node.spec("be", "BE", kube_class="besteffort")
    request = create_request(spec, run_sandbox(node.proxied, spec))
    request.config.command[:] = [image.BUSYBOX, "sh", "-c", "while :; do :; done"]
    container = create_container(node.proxied, request)
    start_container(node.proxied, container)
    assert node.cpus(container) == "0"
    eventually("it runs on all CPUs of its pool", lambda: node.cpus(container) == "0-1")
