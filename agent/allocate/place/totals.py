"""What a pod asks for as a whole, from what the API server tells of its containers."""

from __future__ import annotations

from agent.allocate.pod_total import InitRequests, pod_total
from agent.model.apipods import ApiPod


def requests(pod: ApiPod) -> dict[str, int]:
    """By resource: `cpu` in milli-CPU, the rest in units, overhead included; zeros are left out."""
    total = pod_total(
        (each.requests for each in pod.containers),
        (InitRequests(each.requests, each.sidecar) for each in pod.init_containers),
        pod.requests,
        pod.overhead,
    )
    return {name: amount for name, amount in total.items() if amount > 0}


def cpu_limit_milli(pod: ApiPod) -> int | None:
    """Of all that runs at the same time, None where something of it has no limit."""
    running = (*pod.containers, *(each for each in pod.init_containers if each.sidecar))
    if "cpu" in pod.limits:
        limit = pod.limits["cpu"]
    elif running and all(each.limits.get("cpu") for each in running):
        limit = sum(each.limits["cpu"] for each in running)
    else:
        return None
    return limit + pod.overhead.get("cpu", 0)
