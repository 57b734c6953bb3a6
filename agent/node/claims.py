"""CPUs of claims (DRA), beside what the kubelet gave away itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from agent.allocate.aside import KubeletCpus
from agent.allocate.foreign.claimed import claimed_cpus
from agent.model.holding import Grant

log = logging.getLogger(__name__)


class ClaimView:
    """Tells once what it can't use."""

    def __init__(self) -> None:
        self._said: frozenset[str] = frozenset()

    def beside(self, kubelet: KubeletCpus, grants: Iterable[Grant]) -> KubeletCpus:
        """With what the claims among `grants` gave."""
        found = claimed_cpus(grants)
        for problem in sorted(frozenset(found.problems) - self._said):
            log.warning("claims: %s", problem)
        self._said = frozenset(found.problems)
        if not found.by_uid:
            return kubelet
        return msgspec.structs.replace(kubelet, claimed=found.by_uid)
