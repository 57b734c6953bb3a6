"""What became of calls whose hook could not do its work: counted, and told in the log."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Final

from agent.model.failurepolicy import FailurePolicies
from agent.model.qos import QoS

log = logging.getLogger(__name__)

_LOG_AGAIN_SECONDS: Final = 1.0

Key = tuple[str, ...]
"""Hook, class ("" where the pod is not known), reason."""


class Outcomes:
    """Reasons are few and fixed: `late`, `no_cpu`, `hook_error`, `oversize`, `compressed`,
    `irregular`."""

    def __init__(self, policies: FailurePolicies) -> None:
        self._policies = policies
        self.failed_open: Counter[Key] = Counter()
        self.failed: Counter[Key] = Counter()
        self._told: dict[Key, float] = {}

    def fails(self, hook: str, qos: QoS | None, reason: str, detail: str) -> bool:
        """Whether the call fails by the policy of its hook and class."""
        if self._policies.fails(hook, qos):
            self.refused(hook, qos, reason, detail)
            return True
        self._note(self.failed_open, hook, qos, reason, f"goes on: {detail}")
        return False

    def refused(self, hook: str, qos: QoS | None, reason: str, detail: str) -> None:
        """The call fails whatever the policy is."""
        self._note(self.failed, hook, qos, reason, f"fails: {detail}")

    def _note(
        self, counts: Counter[Key], hook: str, qos: QoS | None, reason: str, text: str
    ) -> None:
        key = (hook, qos.value if qos else "", reason)
        counts[key] += 1
        now = time.monotonic()
        if now - self._told.get(key, -_LOG_AGAIN_SECONDS) >= _LOG_AGAIN_SECONDS:
            self._told[key] = now
            log.warning("%s %s", hook, text)
