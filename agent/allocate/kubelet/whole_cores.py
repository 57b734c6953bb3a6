"""The pods that a kubelet with full-pcpus-only rejects (kubelet:
pkg/kubelet/cm/cpumanager/policy_static.go, Allocate)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from agent.allocate.kubelet.static_policy import AllocationRefused, smt_refusal
from agent.model.pod.numa_request import PartKind, PodPart


class WholeCores(msgspec.Struct, frozen=True):
    """The cores of a machine that full-pcpus-only assigns, which are those without a reserved
    CPU."""

    cpus: int
    """The number of their CPUs."""
    threads: int
    """The CPUs of each core."""

    def refused(
        self, parts: Iterable[PodPart], taken: int = 0
    ) -> tuple[PodPart, AllocationRefused] | None:
        """The first container of a pod that the kubelet refuses, and why; None if it admits the
        pod.

        `parts`: in the order of their admission; each gets the CPUs of ended init containers before
            others.
        `taken`: the number of CPUs that other pods have."""
        available, reusable = self.cpus - taken, 0
        for part in parts:
            requested = part.exclusive_milli // 1000
            if not requested:
                continue
            if refusal := smt_refusal(requested, available, self.threads):
                return part, refusal
            reused = min(requested, reusable)
            available -= requested - reused
            ends = part.kind is PartKind.INIT
            reusable = max(reusable, requested) if ends else reusable - reused
        return None
