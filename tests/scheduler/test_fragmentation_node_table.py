"""The rows of the scheduler's page."""

from __future__ import annotations

from agent.scheduler.fragmentation import DEMAND_SECONDS, NodeRow, NodeTable
from tests.fixtures.fleet import CARDS, SMALL, gpu_pod, gpu_share_pod, ls_pod, owner
from tests.kube.clock import Clock
from tests.scheduler import clusters


def read_all(table: NodeTable) -> dict[str, NodeRow]:
    table.step()
    while table.pending:
        table.step()
    return {each.name: each for each in table.rows()}


def test_a_row_counts_the_resources_without_an_exclusive_allocation() -> None:
    """Each of two NUMA nodes has 8 cores of two threads. The agent is one of the pods."""
    cluster = clusters.cluster({"a": SMALL, "c": CARDS})
    assert clusters.reserve(cluster, owner(3, 2), "a", "p")
    assert clusters.reserve(cluster, ls_pod("1", 1), "a", "q")
    rows = read_all(NodeTable(cluster))
    row = rows["a"]
    assert (row.cpus, row.free_cpus, row.cores, row.free_cores) == (32, 29, 16, 14)
    assert (row.numa_nodes, row.free_numa_nodes, row.pods) == (2, 1, 3)
    assert (row.cpus_on_broken_cores, row.state, row.gpus) == (1, "", 0)
    assert rows["c"].free_gpus == rows["c"].gpus == 8
    assert rows["c"].free_numa_nodes == 2


def test_shares_of_gpus_count() -> None:
    cluster = clusters.cluster({"c": CARDS})
    assert clusters.reserve(cluster, gpu_share_pod(30), "c", "p")
    assert clusters.reserve(cluster, gpu_pod(2), "c", "q")
    row = read_all(NodeTable(cluster))["c"]
    assert row.free_gpus == 5.7
    assert 0 < row.lost_gpus <= 5.7


def test_only_changed_nodes_are_read_again() -> None:
    cluster = clusters.cluster({"a": SMALL, "b": SMALL})
    table = NodeTable(cluster)
    before = read_all(table)
    revision = table.revision
    table.step()
    assert table.revision == revision
    assert clusters.reserve(cluster, owner(2, 2), "a")
    after = read_all(table)
    assert after["b"] is before["b"]
    assert after["a"].free_cores == before["a"].free_cores - 1
    clusters.remove_node(cluster, "b")
    clusters.add_node(cluster, "d", CARDS)
    assert set(read_all(table)) == {"a", "d"}


def test_a_node_that_was_deleted_before_a_full_read_changes_the_table(clock: Clock) -> None:
    cluster = clusters.cluster({"a": SMALL, "b": SMALL})
    table = NodeTable(cluster, clock)
    read_all(table)
    revision = table.revision
    clusters.remove_node(cluster, "b")
    clock.now += DEMAND_SECONDS + 1
    assert set(read_all(table)) == {"a"}
    assert table.revision > revision


def test_a_node_without_an_agent_is_shown_as_such() -> None:
    cluster = clusters.cluster({"a": SMALL})
    clusters.add_node(cluster, "b", SMALL, agent=False)
    rows = read_all(NodeTable(cluster))
    assert (rows["a"].state, rows["b"].state) == ("", "it has no agent")


def test_small_rests_are_judged_by_the_pods_of_the_last_minutes(clock: Clock) -> None:
    """Two free CPUs of a NUMA node are a small rest if pods request 14 exclusive CPUs."""
    cluster = clusters.cluster({"a": SMALL, "b": SMALL})
    table = NodeTable(cluster, clock)
    read_all(table)
    assert clusters.reserve(cluster, owner(14, 2), "a", "p")
    assert read_all(table)["a"].cpus_on_small_rests == 0
    clock.now += DEMAND_SECONDS + 1
    assert read_all(table)["a"].cpus_on_small_rests == 2


def test_a_step_ends_at_its_deadline_before_all_nodes_are_read() -> None:
    cluster = clusters.cluster({f"n{number}": SMALL for number in range(50)})
    table = NodeTable(cluster)
    table.step(0.0)
    assert table.pending
    assert len(read_all(table)) == 50
