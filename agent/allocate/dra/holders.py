"""Which containers have the CPUs of prepared claims.

A claim may be used by several containers, of one pod or of several, and a container may use several
claims, or only one request of a claim."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec

from agent.model.cpu.cpuset import EMPTY
from agent.model.dra.node_claims import ContainerClaim, NodeClaims
from agent.model.dra.prepared_claim import ClaimContainer, PreparedClaim, PreparedGroup
from agent.model.pod.apiobjects import ApiPod


def with_containers(
    claims: Mapping[str, PreparedClaim],
    pods: Iterable[ApiPod],
    existing: Container[str] | None = None,
) -> Mapping[str, PreparedClaim]:
    """The claims with the containers that pods of the API server use them for. Containers of pods
    that the API server does not have any more stay while these exist: they may still run, and pods
    may follow each other in the use of one claim for ever. Returns the same mapping if nothing
    differs.

    `existing`: the uids of the pods that exist; None if they are unknown."""
    # Of claims of one name, all but the last prepared one have left the API server.
    by_age = sorted(claims.values(), key=lambda claim: claim.prepared_at)
    by_name = {(claim.namespace, claim.name): claim.uid for claim in by_age}
    containers: dict[str, set[ClaimContainer]] = {}
    for pod in pods:
        for use in pod.claims:
            if uid := by_name.get((pod.namespace, use.claim)):
                used_by = ClaimContainer(pod.runtime_uid, use.container, use.request)
                containers.setdefault(uid, set()).add(used_by)
    changed = {}
    for uid, claim in claims.items():
        before = {*claim.containers}
        now = containers.get(uid, set()) | {
            container for container in before if existing is None or container.pod_uid in existing
        }
        if now != before:
            in_order = sorted(now, key=lambda used: (used.pod_uid, used.name, used.request))
            changed[uid] = msgspec.structs.replace(claim, containers=tuple(in_order))
    return {**claims, **changed} if changed else claims


def node_claims(claims: Iterable[PreparedClaim]) -> NodeClaims:
    """What decisions read of the claims."""
    cpus = EMPTY
    groups: dict[str, dict[str, list[PreparedGroup]]] = {}
    for claim in claims:
        cpus |= claim.cpus
        for container in claim.containers:
            with_cpus = [group for group in claim.of_request(container.request) if group.cpus]
            if with_cpus:
                of_pod = groups.setdefault(container.pod_uid, {})
                of_pod.setdefault(container.name, []).extend(with_cpus)
    return NodeClaims(
        cpus,
        {
            uid: {name: _of_container(of_groups) for name, of_groups in sorted(of_pod.items())}
            for uid, of_pod in sorted(groups.items())
        },
    )


def _of_container(groups: Iterable[PreparedGroup]) -> ContainerClaim:
    cpus, shared, bind_memory = EMPTY, False, False
    for group in groups:
        cpus |= group.cpu_set
        shared = shared or group.shared
        bind_memory = bind_memory or group.bind_memory
    return ContainerClaim(cpus, shared, bind_memory)
