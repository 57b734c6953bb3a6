from __future__ import annotations

import pytest

from agent.model.cpu.cpuset import CpuSet
from conformance import machines


def cpus_of_node(shape: tuple[float, ...], numbering: str, node: int) -> str:
    return str(CpuSet(cpu.id for cpu in machines.cpus(shape, numbering) if cpu.node == node))


@pytest.mark.parametrize(
    ("numbering", "first", "last"),
    [("adjacent", "0-3", "12-15"), ("interleaved", "0-1,8-9", "6-7,14-15")],
)
def test_numberings(numbering: str, first: str, last: str) -> None:
    shape = (2, 2, 2, 2)
    assert (cpus_of_node(shape, numbering, 0), cpus_of_node(shape, numbering, 3)) == (first, last)


def test_alternating_numbers_are_on_different_nodes() -> None:
    assert cpus_of_node((2, 1, 2, 2), "alternating", 1) == "1,3,5,7"


def test_a_node_may_span_two_sockets() -> None:
    created = machines.cpus((2, 0.5, 4, 1), "adjacent")
    assert [(cpu.socket, cpu.node) for cpu in created] == [(0, 0), (0, 0), (1, 0), (1, 0)]


def test_caches_of_the_whole_machine() -> None:
    created = machines.cpus((1, 2, 4, 1), "adjacent", caches=4)
    assert [cpu.l3 for cpu in created] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("shape", "numbering", "caches", "reason"),
    [
        ((1, 1, 1, 1), "odd", None, "numbering 'odd'"),
        ((10**9, 1, 1, 1), "adjacent", None, "more than 65536"),
        ((0, 1, 4, 2), "adjacent", None, "has no CPUs"),
        ((2, 0, 4, 2), "adjacent", None, "has no CPUs"),
        ((2, 1, 0, 2), "adjacent", None, "has no CPUs"),
        ((2, 1, 4, 0), "adjacent", None, "has no CPUs"),
        ((-2, -1, 4, 2), "adjacent", None, "has no CPUs"),
        ((4, 0.25, 2, 1), "adjacent", None, "a socket without"),
        ((2, 1, 4, 2), "adjacent", 0, "0 L3 caches for 8 cores"),
        ((2, 1, 4, 2), "adjacent", 9, "9 L3 caches for 8 cores"),
    ],
)
def test_invalid_machines(
    shape: tuple[float, ...], numbering: str, caches: int | None, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        machines.cpus(shape, numbering, caches)
