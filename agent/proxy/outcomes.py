"""What became of calls whose hook could not do its work: counted, and told in the log."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Final

from agent.model.failurepolicy import FailurePolicies

log = logging.getLogger(__name__)

_LOG_AGAIN_SECONDS: Final = 1.0

Key = tuple[str, ...]
"""Hook, class ("" where the pod is not known), reason."""


class Outcomes:
    """Reasons are few and fixed: `late`, `no_cpu`, `hook_error`, `oversize`, `compressed`,
    `irregular`; of devices also `unhonoured`, `taken`, `door`, `privileged`. A class is a QoS
    class or `devices`."""

    def __init__(self, policies: FailurePolicies) -> None:
        self._policies = policies
        self.failed_open: Counter[Key] = Counter()
        self.failed: Counter[Key] = Counter()
        self._told: dict[Key, float] = {}

    def fails(self, hook: str, class_: str | None, reason: str, detail: str) -> bool:
        """Whether the call fails by the policy of its hook and class."""
        if self._policies.fails(hook, class_):
            self.refused(hook, class_, reason, detail)
            return True
        self.goes_on(hook, class_, reason, detail)
        return False

    def strictest(self, hook: str, *classes: str) -> str:
        """Of the classes that a call belongs to the one whose policy fails it, else the first."""
        return next((each for each in classes if self._policies.fails(hook, each)), classes[0])

    def refused(self, hook: str, class_: str | None, reason: str, detail: str) -> None:
        """The call fails whatever the policy is."""
        self._note(self.failed, hook, class_, reason, f"fails: {detail}")

    def goes_on(self, hook: str, class_: str | None, reason: str, detail: str) -> None:
        """The call goes on whatever the policy is."""
        self._note(self.failed_open, hook, class_, reason, f"goes on: {detail}")

    def _note(
        self, counts: Counter[Key], hook: str, class_: str | None, reason: str, text: str
    ) -> None:
        key = (hook, str(class_ or ""), reason)
        counts[key] += 1
        now = time.monotonic()
        if now - self._told.get(key, -_LOG_AGAIN_SECONDS) >= _LOG_AGAIN_SECONDS:
            self._told[key] = now
            log.warning("%s %s", hook, text)
