"""Pods with claims come and go while agent, kubelet and runtime are killed.

TOPOLET_CLAIM_PODS and TOPOLET_CLAIM_KILLS set how many."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.cluster import claims
from tests.cluster.churn import Churn, annotated, claimed, kills, slices_gone
from tests.cluster.cluster import HOST, Cluster

log = logging.getLogger(__name__)

PODS = int(os.environ.get("TOPOLET_CLAIM_PODS", "40"))
KILLS = int(os.environ.get("TOPOLET_CLAIM_KILLS", "6"))
GRACE_SECONDS = 30.0
"""So long a kubelet keeps the slices of a driver that is gone."""
ANNOTATED_EVERY = 20
"""A claim that loses its CPU to an annotated pod is refused, and a kubelet asks again after a
minute: with two CPUs that stops all others."""
SOON = {"maxContainerRestartPeriod": "2s"}
"""An agent that is killed again and again starts soon."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900 + 15 * PODS),
    pytest.mark.usefixtures("no_pods"),
]


@pytest.fixture
def with_dra(installed: Cluster) -> Iterator[Cluster]:
    node = installed.nodes[HOST]
    with claims.driver(installed):
        node.restart_kubelet(crashLoopBackOff=SOON)
        installed.wait_node_ready(HOST)
        yield installed
        node.restart_kubelet(crashLoopBackOff=None)
        installed.wait_node_ready(HOST)


def test_no_cpu_has_two_owners_and_no_claim_is_left_over_kills(with_dra: Cluster) -> None:
    """One claim or one annotated pod at a time has a CPU of its own, as the node has two."""
    cluster = with_dra
    cluster.pod("ls", qos="LS", cpu="10m", node=HOST)
    ls = cluster.get("pod", "ls")
    assert ls is not None
    pool = ls["status"]["containerStatuses"][0]["containerID"].rpartition("//")[2]
    pod = {"node": HOST}
    ways = [claimed(pod)] * (ANNOTATED_EVERY - 1) + [annotated(1, pod)]
    churn = Churn(cluster, HOST, 1, ways)
    with slices_gone(cluster, HOST) as spans:
        churn.run(PODS, kills(cluster.nodes[HOST], KILLS))
        claims.wait_nothing_left(cluster)
    longest = max((end - begin for begin, end in spans if not churn.is_annotated(begin)), default=0)
    log.info(
        "%d pods, kills %s, %d with claims ran, %d restarted, slices gone for at most %.1f s",
        *(PODS, dict(churn.faults), len(churn.ran()), churn.restarted, longest),
    )
    assert churn.failed == []
    assert churn.twice_owned() == []
    assert churn.shared_with(pool) == []
    assert churn.moved() == []
    # Those that an annotated pod has left no CPU may be evicted.
    assert len(churn.ran()) > 0.8 * PODS
    assert longest < GRACE_SECONDS
    cluster.eventually("the pool is whole", lambda: cluster.cpus_of("ls") == CpuSet((0, 1)))
