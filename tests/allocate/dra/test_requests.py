"""Pods that request less CPU than their claims have."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.allocate.dra.requests import low_requests
from agent.model.cpu.cpuset import CpuSet
from agent.model.dra.node_claims import ContainerClaim, NodeClaims
from agent.model.pod.apiobjects import ApiContainer, ApiPod, ClaimUse, Phase


def pod(uid: str, of_container: int, of_pod: int = 0, created_at: int = 0) -> ApiPod:
    requests = {"cpu": of_container} if of_container else {}
    return ApiPod(
        *(uid, "ns", uid, "n1", Phase.RUNNING, {}, {}, "burstable", created_at),
        containers=(ApiContainer("x", requests, {}),),
        requests={"cpu": of_pod} if of_pod else {},
        claims=(ClaimUse("x", "a"),),
    )


FOUR = NodeClaims(containers={"p": {"x": ContainerClaim(CpuSet(range(4)))}})


@pytest.mark.parametrize(
    ("of_container", "of_pod", "low"),
    [(0, 0, True), (3999, 0, True), (4000, 0, False), (0, 4000, False), (5000, 3000, True)],
)
def test_the_request_of_the_pod_counts_else_those_of_its_containers(
    of_container: int, of_pod: int, low: bool
) -> None:
    assert bool(low_requests([pod("p", of_container, of_pod)], FOUR)) is low


@pytest.mark.parametrize("change", [{"claims_requested": True}, {"phase": Phase.SUCCEEDED}])
def test_a_pod_whose_claims_count_as_requests_or_that_has_ended_requests_enough(
    change: dict[str, Any],
) -> None:
    assert low_requests([replace(pod("p", 0), **change)], FOUR) == ()


def test_the_text_says_what_to_set() -> None:
    (low,) = low_requests([pod("p", 1500)], FOUR)
    assert low.text == (
        "it requests 1.5 CPUs and has 4 by its claims, of which kube-scheduler counts none: set "
        "spec.resources.requests.cpu, or the requests of its containers, to 4"
    )


def test_the_oldest_pod_requests_the_cpus_of_a_claim_that_several_use() -> None:
    claims = NodeClaims(containers=dict.fromkeys("pq", FOUR.containers["p"]))
    newer, older = pod("p", 0, created_at=2), pod("q", 4000, created_at=1)
    assert low_requests([newer, older], claims) == ()
