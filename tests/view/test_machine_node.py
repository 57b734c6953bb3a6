from __future__ import annotations

import msgspec
import pytest

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.annotations import MIXED_CONTAINERS
from agent.view.machine import draw_node, node_holders
from tests.builders import machine, pod
from tests.view.decided import decided, picture_of_every_kind_of_pod, snapshot


def test_an_owner_whose_cpus_are_all_offline_shares_the_pool() -> None:
    topology, pods = machine(1, 3, offline="2"), (pod("a", "LSE", "2"),)
    decision = decide(topology, pods, KubeletCpus(), {"a": CpuSet([2])}, {})
    *_, row = draw_node(topology, snapshot(decision)).splitlines()
    assert "shared; claim refused: CPUs 2 are offline" in row


def test_picture_of_two_sockets_with_every_kind_of_pod() -> None:
    assert (
        picture_of_every_kind_of_pod()
        == """\
8 CPUs · 8 cores · 2 sockets · 2 NUMA nodes · 2 GiB

╭─ Socket 0 · NUMA node 0 · 1 GiB ─╮ ╭─ Socket 1 · NUMA node 1 · 1 GiB ─╮
│ [0a] [1b] [2a] [3a]              │ │ [4a] [5c] [6a] [7d]              │
╰──────────────────────────────────╯ ╰──────────────────────────────────╯

Owners
  a  LS and BE pool  0,2-4,6
  b  LSE ns/lse  1
  c  LSR ns/lsr, and the BE pool  5
  d  kubelet ns/g  7

POD     QOS  CPUS
ns/bad  LSE  0,2-4,6  shared; claim refused: CPUs 9 do not exist
ns/lse  LSE  1        own
ns/lsr  LSR  5        own; a container of pod ns/ls still holds CPUs 5
ns/g    LS   7        own, by the kubelet
ns/ls   LS   0,2-4,6  shared
ns/be   BE   0,2-6    shared
"""
    )


def test_a_pod_without_cpus_has_a_reason() -> None:
    topology = machine(1, 2)
    decision = decide(
        topology, (pod("a", "LSE", "0-1"), pod("b", "LS")), KubeletCpus(), {"a": CpuSet([0, 1])}, {}
    )
    assert draw_node(topology, snapshot(decision)).splitlines()[-1] == (
        "ns/b  LS   -     no CPU is left for it: 0-1 belong to pod ns/a"
    )


def test_a_mixed_container_has_both_parts() -> None:
    mixed = pod("a", "LSE", "0-1")
    mixed.annotations[MIXED_CONTAINERS] = "dpdk"
    topology = machine(1, 4)
    *_, row = draw_node(topology, snapshot(decided(topology, mixed))).splitlines()
    assert row == "ns/a  LSE  0-1   own; dpdk on 0-1 of its own and 2-3 of its pool"


def test_no_pods() -> None:
    assert draw_node(machine(), snapshot(decided(machine()))).endswith("\n\nNo pods.\n")


@pytest.mark.parametrize("width", [40, 60, 200])
def test_no_line_of_a_pod_is_wider_than_the_screen(width: int) -> None:
    topology = machine(2, 4)
    long = pod("a-name-that-goes-on-and-on-" * 3, "LSE", "1,9")
    table = draw_node(topology, snapshot(decided(topology, long)), width).partition("POD")[2]
    assert max(map(len, table.splitlines())) <= width


def test_holders_of_cpus_in_one_pool_or_in_no_pool() -> None:
    topology = machine(isolated="3")
    decision = decided(topology, pod("lsr", "LSR", "0"), pod("lse", "LSE", "1"))
    pools = snapshot(decision)
    only_ls = msgspec.structs.replace(pools, pools={**pools.pools, "be": ()})
    assert node_holders(topology, only_ls) == {0: "LSR ns/lsr", 1: "LSE ns/lse", 2: "LS pool"}
    assert node_holders(topology, pools)[0] == "LSR ns/lsr, and the BE pool"
    assert 3 not in node_holders(topology, pools), "isolated"


def test_the_machine_is_folded_on_a_low_screen() -> None:
    topology = machine(8, 16)
    decision = decided(topology, pod("lse", "LSE", "5"))
    whole = draw_node(topology, snapshot(decision))
    folded = draw_node(topology, snapshot(decision), height=24)
    assert len(whole.splitlines()) > 24 >= len(folded.splitlines())
    assert "ns/lse  LSE  5" in folded


def test_names_of_a_runtime_do_not_act_on_the_terminal() -> None:
    topology = machine(1, 2)
    hostile = msgspec.structs.replace(pod("a", "LSE", "0"), name="a\x1b[2J\r\u202eb\nc\u2028")
    found = snapshot(decide(topology, (hostile,), KubeletCpus(), {}, {}))
    text = draw_node(topology, found)
    assert "a?[2J??b?c?" in text
    assert all(line.isprintable() for line in text.split("\n"))
