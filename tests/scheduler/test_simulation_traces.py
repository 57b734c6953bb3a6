"""Traces in CSV files."""

from __future__ import annotations

import pytest

from agent.model.pod_request import PodKind
from agent.scheduler.simulation import TraceError, arrivals, read_nodes, read_pods, shuffled

NODES = ["sn,cpu_milli,memory_mib,gpu,model\n", "a,64000,1024,2,T4\n", "b,8000,512,0,\n"]
PODS = [
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n",
    "a,1000,1,1,465,T4|G2\n",
    "b,2000,2,0,0,\n",
    "c,3000,3,2,1000,\n",
]
MIB = 1 << 20


def test_amounts_have_the_units_of_pod_requests() -> None:
    nodes = read_nodes(NODES, "nodes")
    assert [(each.cpu_milli, each.memory_bytes, each.gpus, each.model) for each in nodes] == [
        (64_000, 1024 * MIB, 2, "T4"),
        (8_000, 512 * MIB, 0, ""),
    ]
    assert read_pods(PODS, "pods") == [
        PodKind(1000, MIB, 1, 470, ("G2", "T4")),
        PodKind(2000, 2 * MIB),
        PodKind(3000, 3 * MIB, 2, 1000),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "pods: line 1: no column cpu_milli"),
        (["cpu_milli,memory_mib,num_gpu\n"], "pods: line 1: no column gpu_milli"),
        ([*PODS, "d,x,1,1,1000,\n"], "pods: line 5: cpu_milli: 'x' is not a whole number"),
        ([*PODS, "d,-1,1,1,1000,\n"], "pods: line 5: cpu_milli: '-1' is not a whole number"),
        ([*PODS, "d,1\n"], "pods: line 5: memory_mib: '' is not a whole number"),
        ([*PODS, "d,1,1,1,1001,\n"], "pods: line 5: gpu_milli: 1001 is more than 1000"),
        (PODS[:1], "pods: no pod requests GPUs"),
    ],
)
def test_the_error_for_an_invalid_trace_names_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError) as raised:
        read_pods(lines, "pods")
    assert str(raised.value) == message


def test_a_cluster_without_gpus_is_rejected() -> None:
    with pytest.raises(TraceError, match="nodes: no node has GPUs"):
        read_nodes([NODES[0], NODES[2]], "nodes")


def test_pods_arrive_until_they_request_the_load() -> None:
    pods = read_pods(PODS, "pods")
    arriving = arrivals(pods, 20, 1.3, 42)
    requested = sum(each.gpus * each.gpu_milli for each in arriving)
    assert requested >= 26_000
    assert requested - max(each.gpus * each.gpu_milli for each in pods) < 26_000
    assert set(pods) <= set(arriving)
    assert arriving == arrivals(pods, 20, 1.3, 42)
    assert arriving != arrivals(pods, 20, 1.3, 43)


def test_the_seed_determines_the_order_of_the_nodes() -> None:
    nodes = read_nodes(NODES, "nodes") * 20
    assert shuffled(nodes, 42) == shuffled(nodes, 42) != shuffled(nodes, 43)
