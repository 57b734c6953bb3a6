"""Has kube-scheduler try a pod again that only our rule held back, once a node has room.

kube-scheduler forgets a pod that an extender refused until a pod or a node changes, or for five
minutes; it does not see NodeResourceTopology and Device objects. Any change of the pod itself makes
it try that pod, and no other, at once (the queueing hint of a refusal by an extender): a condition
of the pod's status is the least of them, and says to people what happened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from agent.kube.auth import AccessError
from agent.kube.errors import ConflictError, KubeError, NotFoundError, RejectedError
from agent.kube.transport import Transport
from agent.scheduler.podstatus import condition, patch_status
from agent.scheduler.waiter import Waiter
from agent.scheduler.waiting import Answers, Hope, Waiting

CONDITION: Final = "topolet.io/RoomFound"

log = logging.getLogger(__name__)


class Retry:
    """One thread has the rounds. `leading`: only who decides touches pods; `before`: who waits as
    it begins to."""

    def __init__(
        self,
        transport: Transport,
        waiting: Waiting,
        answers: Answers,
        leading: Callable[[], bool],
        before: Callable[[], Iterable[Waiter]] = tuple,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._waiting = waiting
        self._answers = answers
        self._leading = leading
        self._before = before
        self._led = False
        self._clock = clock
        self.tried = 0

    def round(self) -> None:
        """Touches those pods that a changed node has room for. Who does not lead knows of none."""
        if not self._leading():
            self._waiting.clear()
            self._led = False
            return
        if not self._led:
            self._led = self._begun()
        self._touch()

    def _begun(self) -> bool:
        try:
            for waiter in self._before():
                self._waiting.adopt(waiter)
        except (KubeError, AccessError) as error:
            log.warning("who waits already is not known: %s", error)
            return False
        return True

    def _touch(self) -> None:
        for hope in self._waiting.round(self._answers, self._clock()):
            waiter = hope.waiter
            try:
                patch_status(
                    self._transport, waiter.namespace, waiter.name, waiter.uid, _told(hope)
                )
            except (NotFoundError, ConflictError, RejectedError) as error:
                log.info("pod %s waits no more: %s", waiter.title, error)
                self._waiting.settled(waiter.uid)
                continue
            except (KubeError, AccessError) as error:
                log.warning("pod %s is not tried again now: %s", waiter.title, error)
                continue
            self.tried += 1
            log.info("pod %s is tried again: node %s has room", waiter.title, hope.node)


def _told(hope: Hope) -> dict[str, Any]:
    message = f"node {hope.node} has changed and has room now"
    return {"conditions": [condition(CONDITION, "NodeChanged", message)]}
