"""Whether pods request the CPUs of their claims.

kube-scheduler counts the CPU requests of pods, and nothing of their claims before KEP-5517: it
places other pods on CPUs that are in no pool any more."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.model.cpu.cpuset import EMPTY
from agent.model.dra.node_claims import NodeClaims
from agent.model.pod.apiobjects import ApiPod
from agent.model.pod.resource_request import pod_requests


class LowRequest(msgspec.Struct, frozen=True):
    """A pod whose CPU request is below its claims."""

    pod: ApiPod
    request_milli: int
    cpus: int
    """The number of CPUs that its claims have."""

    @property
    def text(self) -> str:
        """A sentence for its author."""
        return (
            f"it requests {self.request_milli / 1000:g} CPUs and has {self.cpus} by its claims, of "
            "which kube-scheduler counts none: set spec.resources.requests.cpu, or the requests of "
            f"its containers, to {self.cpus}"
        )


def low_requests(pods: Iterable[ApiPod], claims: NodeClaims) -> tuple[LowRequest, ...]:
    """The pods that request less than their claims have. Of pods that use one claim the oldest has
    its CPUs."""
    taken, low = EMPTY, []
    for pod in sorted(pods, key=lambda pod: (pod.created_at, pod.uid)):
        if pod.terminal or pod.claims_requested:
            continue
        cpus = claims.of_pod(pod.runtime_uid) - taken
        taken |= cpus
        request_milli = pod_requests(pod).get("cpu", 0)
        if request_milli < 1000 * len(cpus):
            low.append(LowRequest(pod, request_milli, len(cpus)))
    return tuple(low)
