from __future__ import annotations

import pytest

from agent.allocate.layout import of
from agent.allocate.numa.hint import TopologyHint
from agent.model.cpu.cpuset import members
from agent.model.cpu.topology import Cpu
from agent.model.pod.exclusive_cpus import ContainerCpu, PodCpu
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


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("7", ["0*", "1*", "01"]),
        ("8", ["1*", "01"]),
        ("9", ["01*"]),
        ("16", []),
        ("1.5", None),
    ],
)
def test_masks_depend_on_free_cpus_and_preference_on_all_cpus(
    request_: str, expected: list[str] | None
) -> None:
    node = Node(policy(TWO))
    assert for_container(node, pod("a", request_), "c0") == expected
    assert for_pod(node, pod("a", request_)) == expected


def test_a_pod_that_is_not_guaranteed_has_no_preference() -> None:
    burstable = PodCpu("a", "burstable", (ContainerCpu("c0", 2000),))
    assert for_container(Node(policy(TWO)), burstable, "c0") is None
    assert for_pod(Node(policy(TWO)), burstable) is None


def test_only_the_smallest_possible_masks_are_preferred_even_if_they_are_full() -> None:
    node = Node(policy(TWO))
    node.cpus(pod("a", "6"), "c0", 0)
    node.cpus(pod("b", "6"), "c0", 1)
    assert for_container(node, pod("c", "3"), "c0") == ["01"]


def test_a_container_with_assigned_cpus_has_hints_for_their_nodes() -> None:
    node = Node(policy(TWO))
    node.cpus(pod("a", "2"), "c0", 1)
    assert for_container(node, pod("a", "2"), "c0") == ["1*", "01"]
    assert for_pod(node, pod("a", "2")) == ["1*", "01"]


def test_a_container_with_a_changed_cpu_request_has_no_hints() -> None:
    node = Node(policy(TWO))
    node.cpus(pod("a", "2"), "c0")
    assert for_container(node, pod("a", "3"), "c0") == []
    assert for_pod(node, pod("a", "3")) == []


def test_masks_contain_the_nodes_of_reusable_cpus() -> None:
    node = Node(policy(TWO))
    with_init = pod("a", "6", init=("4",))
    node.cpus(with_init, "i0", 1)
    assert for_container(node, with_init, "c0") == ["1*", "01"]
    assert for_pod(node, with_init) == ["1*", "01"]


def test_cpus_of_a_removed_init_container_count_once() -> None:
    node = Node(policy(TWO))
    with_init = pod("a", "10", init=("4",))
    node.cpus(with_init, "i0", 0)
    node.remove(with_init, "i0")
    assert for_container(node, with_init, "c0") == ["01*"]


def test_align_by_socket_prefers_masks_of_the_fewest_sockets() -> None:
    node = Node(policy(machine(2, 2, 2, 2), "align-by-socket"))
    assert for_container(node, pod("a", "2"), "c0") == [
        *["0*", "1*", "2*", "3*"],
        *["01*", "02", "03", "12", "13", "23*"],
        *["012", "013", "023", "123", "0123"],
    ]


def test_nodes_without_cpus_are_in_no_mask() -> None:
    cpus = [Cpu(n, n, None, None, n // 2, 9 * (n // 2)) for n in range(4)]
    node = Node(policy(of(cpus)))
    hints = container_hints(node.policy, node.state, pod("a", "2"), "c0")
    assert hints is not None
    assert [tuple(members(hint.mask or 0)) for hint in hints] == [(9,), (0, 9)]
