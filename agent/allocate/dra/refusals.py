"""Which pod leaves a node that can't prepare its claims.

A scheduler allocates a claim by the slices that it has read, which others may have overtaken: an
annotation, another scheduler, or a CPU that went offline. The kubelet asks for the claim again
after 60 to 90 seconds (Kubernetes: SyncPod in kuberuntime_manager.go reports no error, so that the
pod's worker waits its resyncInterval), and the pod would wait for ever: the allocation of a claim
names its node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from agent.allocate.dra.preparation import RefusalKind
from agent.model.pod.apiobjects import ApiPod, Phase

REFUSED_TIMES: Final = 2
REFUSED_SECONDS: Final = 30.0
"""A pod leaves after both. CPUs of a pod that is ending are free by then: 30 seconds are the
default grace period."""
FORGOTTEN_SECONDS: Final = 150.0
"""The kubelet has given up a claim for which it has not asked for so long: it asks again 90 seconds
after an answer, which may have waited for CPUs."""
PAUSE_SECONDS: Final = 60.0
"""The time between two evictions. A scheduler may send the successor back, if the amounts suffice
and the whole cores do not."""


class UnpreparedClaim(msgspec.Struct, frozen=True):
    """A claim that was not prepared. Times are monotonic seconds."""

    uid: str
    namespace: str
    name: str
    kind: RefusalKind
    reason: str
    since: float
    last: float
    times: int = 1

    def repeated(self, kind: RefusalKind, reason: str, now: float) -> UnpreparedClaim:
        """After one more refusal."""
        times = self.times + 1
        return msgspec.structs.replace(self, kind=kind, reason=reason, last=now, times=times)


def leaver(
    refused: Iterable[UnpreparedClaim], pods: Iterable[ApiPod], now: float
) -> tuple[ApiPod, UnpreparedClaim] | None:
    """The pod that has waited longest for a claim that only another node can prepare, with that
    claim. A pod that runs stays, since it has what it needs, and so do static and critical pods."""
    waiting = {
        (pod.namespace, use.claim): pod
        for pod in pods
        if pod.phase is Phase.PENDING and not pod.deleted and not pod.unmovable
        for use in pod.claims
    }
    for claim in sorted(refused, key=lambda claim: (claim.since, claim.uid)):
        pod = waiting.get((claim.namespace, claim.name))
        lasting = claim.times >= REFUSED_TIMES and now - claim.since >= REFUSED_SECONDS
        if pod is not None and lasting and claim.kind.elsewhere:
            return pod, claim
    return None
