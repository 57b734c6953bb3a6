"""ResourceClaims on CPUs with a real kubelet, scheduler and runtime: what went wrong in other DRA
drivers, each step on the two CPUs of the node, of which one stays in the pool."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.dra.names import DRIVER
from agent.proto import dra_pb2 as pb
from tests.cluster import claims, dradriver
from tests.cluster.claims import (
    ALL,
    claim,
    claimant,
    delete_claimants,
    kill_agent,
    kill_container,
    kill_kubelet,
    prepared,
    slices_gone,
    wait_nothing_left,
    wait_published,
)
from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.cluster.pods import manifest
from tests.fixtures import image

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("no_pods")]

GRACE_SECONDS = 30.0
"""How long a kubelet keeps the slices of a driver that is gone."""


@pytest.fixture(scope="module")
def with_dra(installed: Cluster) -> Iterator[Cluster]:
    with claims.driver(installed):
        yield installed


def test_a_claim_keeps_its_cpus_while_everything_restarts(with_dra: Cluster) -> None:
    """The container, the agent by SIGKILL and by a rolling update, and the kubelet: the kubelet
    does not prepare claims of running pods again, and deletes slices of a driver that is gone."""
    cluster = with_dra
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.create(claim("one", 1), claimant("one", restartPolicy="Always"))
    cluster.wait_running("one")
    own = cluster.cpus_of("one")
    assert len(own) == 1
    assert prepared(cluster) == {"one": own}
    others = ALL - own
    assert cluster.cpus_of("ls") == others

    files = claims.cdi_files(cluster)
    with cluster.following("ls") as seen_of_others, slices_gone(cluster) as gone:
        kill_container(cluster, "one")
        assert cluster.cpus_of("one") == own
        with cluster.following("one") as seen:
            kill_agent(cluster)
            cluster.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/topolet-agent")
            claims.wait_rolled_out(cluster)
            cluster.nodes[HOST].restart_kubelet()
            cluster.wait_node_ready(HOST)
            kill_kubelet(cluster)
            wait_published(cluster)
        kill_container(cluster, "one")
        assert cluster.cpus_of("one") == own
    assert seen == {"one": [str(own)]}
    assert seen_of_others == {"ls": [str(others)]}
    assert claims.cdi_files(cluster) == files, "the claim is not prepared again"
    print("slices gone", gone)
    delete_claimants(cluster, "one")
    cluster.eventually("the CPU is in the pool", lambda: cluster.cpus_of("ls") == ALL)
