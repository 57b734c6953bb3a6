"""Which containers have the CPUs of claims."""

from __future__ import annotations

from agent.allocate.dra.holders import node_claims, with_containers
from agent.model.cpu.cpuset import CpuSet
from agent.model.dra.node_claims import ContainerClaim
from agent.model.dra.prepared_claim import ClaimContainer, PreparedClaim, PreparedGroup
from agent.model.pod.apiobjects import ApiPod, ClaimUse, Phase

GROUPS = (
    PreparedGroup("a/first", "n1", "numa-node-0", "0-3"),
    PreparedGroup("b", "n1", "numa-node-1", "8-9", shared=True, bind_memory=True),
    PreparedGroup("watch", "n1", "numa-node-1"),
)
CLAIM = PreparedClaim("u-1", "ns", "c", GROUPS)


def pod(uid: str, *uses: ClaimUse, namespace: str = "ns") -> ApiPod:
    running = Phase.RUNNING
    return ApiPod(uid, namespace, uid, "n1", running, {}, {}, "besteffort", 0, claims=uses)


def test_containers_have_what_their_pods_say() -> None:
    """A request with admin access has no CPUs, and a claim of another namespace is another one."""
    pods = [
        pod(
            "p", ClaimUse("all", "c"), ClaimUse("one", "c", "b"), ClaimUse("monitor", "c", "watch")
        ),
        pod("q", ClaimUse("all", "c"), namespace="other"),
        pod("r", ClaimUse("x", "unknown")),
    ]
    claims = with_containers({"u-1": CLAIM}, pods)
    of_node = node_claims(claims.values())
    assert of_node.cpus == CpuSet.parse("0-3,8-9")
    assert of_node.containers == {
        "p": {
            "all": ContainerClaim(CpuSet.parse("0-3,8-9"), shared=True, bind_memory=True),
            "one": ContainerClaim(CpuSet.parse("8-9"), shared=True, bind_memory=True),
        }
    }
    assert with_containers(claims, pods) is claims


def test_a_pod_uses_the_claim_that_exists_of_those_with_one_name() -> None:
    """The pod of the other one was deleted by force, and its containers have not ended. An agent
    that starts reads claims in the order of their uids."""
    old = PreparedClaim("u-9", "ns", "c", GROUPS, prepared_at=1)
    new = PreparedClaim("u-1", "ns", "c", (PreparedGroup("a", "n1", "d", "16"),), prepared_at=2)
    claims = with_containers({"u-1": new, "u-9": old}, [pod("p", ClaimUse("x", "c"))])
    assert node_claims(claims.values()).containers == {"p": {"x": ContainerClaim(CpuSet((16,)))}}


def test_a_container_may_use_several_claims() -> None:
    other = PreparedClaim("u-2", "ns", "d", (PreparedGroup("a", "n1", "numa-node-2", "16"),))
    uses = pod("p", ClaimUse("x", "c", "a"), ClaimUse("x", "d"))
    claims = with_containers({"u-1": CLAIM, "u-2": other}, [uses])
    of_node = node_claims(claims.values())
    assert of_node.containers == {"p": {"x": ContainerClaim(CpuSet.parse("0-3,16"))}}


def test_containers_stay_while_their_pods_exist() -> None:
    """The API server deletes a pod by force while its containers run. Pods that share a claim may
    follow each other without its end."""
    claims = with_containers({"u-1": CLAIM}, [pod("p", ClaimUse("x", "c"))])
    assert with_containers(claims, []) is claims
    more = with_containers(claims, [pod("q", ClaimUse("x", "c"))])
    assert [each.pod_uid for each in more["u-1"].containers] == ["p", "q"]
    assert more["u-1"].containers[0] == ClaimContainer("p", "x")
    assert with_containers(more, [], {"p", "q"}) is more
    left = with_containers(more, [pod("r", ClaimUse("x", "c"))], {"q"})
    assert [used.pod_uid for used in left["u-1"].containers] == ["q", "r"]
