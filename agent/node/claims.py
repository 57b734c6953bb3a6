"""CPUs of claims (DRA), beside what the kubelet gave away itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from agent.allocate.aside import KubeletCpus
from agent.allocate.foreign.claimed import claimed_cpus
from agent.allocate.foreign.coexistence import conflicts
from agent.model.holding import Grant

log = logging.getLogger(__name__)


class ClaimView:
    """Tells once what it can't use, and CPUs that two pods have."""

    def __init__(self) -> None:
        self._said: frozenset[tuple[int, str]] = frozenset()

    def beside(self, kubelet: KubeletCpus, grants: Iterable[Grant]) -> KubeletCpus:
        """With what the claims among `grants` gave."""
        found = claimed_cpus(grants)
        twice = (
            f"pod {each.refused.uid} has CPUs {each.refused.part} beside pod {each.kept.uid}"
            for each in conflicts(found.holdings, {})
        )
        # The kubelet is asked of a container some moments after it was seen.
        now = frozenset(
            [(logging.INFO, each) for each in found.problems]
            + [(logging.WARNING, each) for each in twice]
        )
        for level, problem in sorted(now - self._said):
            log.log(level, "claims: %s", problem)
        self._said = now
        if not found.by_uid:
            return kubelet
        return msgspec.structs.replace(kubelet, claimed=found.by_uid)
