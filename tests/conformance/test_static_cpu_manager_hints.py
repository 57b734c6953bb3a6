from __future__ import annotations

from agent.allocate.numa.hint import TopologyHint
from agent.model.cpu.cpuset import members
from agent.model.cpu.layout import of
from agent.model.cpu.topology import Cpu
from agent.model.pod_request import PodCpu
from conformance.static_cpu_manager import container_hints, pod_hints
from tests.allocate.kubelet.nodes import Node, machine, pod, policy

TWO = machine(2, 1, 4, 2)
"""Cores 0-3 in node 0, 4-7 in node 1; core n has CPUs n and n + 8."""


def texts(hints: tuple[TopologyHint, ...] | None) -> list[str] | None:
    """`01*`: nodes 0 and 1, preferred."""
    if hints is None:
        return None
    return ["".join(map(str, members(hint.mask or 0))) + "*" * hint.preferred for hint in hints]


def for_container(node: Node, pod: PodCpu, name: str) -> list[str] | None:
    return texts(container_hints(node.policy, node.state, pod, name))


def for_pod(node: Node, pod: PodCpu) -> list[str] | None:
    return texts(pod_hints(node.policy, node.state, pod))


def test_a_container_with_a_changed_cpu_request_has_no_hints() -> None:
    node = Node(policy(TWO))
    node.cpus(pod("a", "2"), "c0")
    assert for_container(node, pod("a", "3"), "c0") == []
    assert for_pod(node, pod("a", "3")) == []


def test_nodes_without_cpus_are_in_no_mask() -> None:
    cpus = [Cpu(n, n, None, None, n // 2, 9 * (n // 2)) for n in range(4)]
    node = Node(policy(of(cpus)))
    hints = container_hints(node.policy, node.state, pod("a", "2"), "c0")
    assert hints is not None
    assert [tuple(members(hint.mask or 0)) for hint in hints] == [(9,), (0, 9)]
