"""The label of the leader's pod, by which a Service selects it.

The label only directs requests: a standby that receives one answers 503. A process whose pod may
have the wrong label is not Ready. This removes the pod from the Service even if this process can't
reach the API server, because the kubelet reports the readiness.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from agent.host.daemon import Periodic
from agent.host.log_once import Problem
from agent.kube.errors import StoreError
from agent.kube.kinds import pod_path
from agent.kube.transport import Transport

log = logging.getLogger(__name__)

LABEL: Final = "topolet.io/scheduler-leader"
VALUE: Final = "true"
STEP_SECONDS: Final = 0.5
AGAIN_SECONDS: Final = 30.0
"""The time after which the label is written again, because another client may have changed it."""


class LeaderLabel:
    """Adds the label while `leading`, and removes it otherwise, also a label of a former process of
    the pod. Runs on a thread of its own from `start` to `stop`."""

    def __init__(
        self,
        transport: Transport,
        pod: tuple[str, str],
        leading: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pod`: namespace and name."""
        namespace, name = pod
        self._transport = transport
        self._path = pod_path(namespace, name)
        self._leading = leading
        self._clock = clock
        self._written: bool | None = None
        self._written_at = 0.0
        self._problem = Problem(log, f"the label {LABEL} of pod {namespace}/{name}: ")
        self._periodic = Periodic("leader label", STEP_SECONDS, self.step)

    def unready(self) -> str | None:
        """Returns why the pod may have the wrong label; None if it is right, or about to be."""
        if self._problem.text is not None:
            return f"the label {LABEL}: {self._problem.text}"
        return None if self._written is not None else f"the label {LABEL} is not written yet"

    def step(self) -> None:
        """Writes the label if it is wrong, or has not been written for a while. Never raises."""
        wanted = self._leading()
        fresh = self._clock() - self._written_at < AGAIN_SECONDS
        if wanted == self._written and fresh and self._problem.text is None:
            return
        value = VALUE if wanted else None
        try:
            self._transport.merge(self._path, {"metadata": {"labels": {LABEL: value}}})
        except StoreError as error:
            self._problem.report(str(error))
            return
        self._problem.clear()
        self._written, self._written_at = wanted, self._clock()

    def hurry(self) -> None:
        """Makes the next step begin at once, after the leadership has changed. Does not block."""
        self._periodic.hurry()

    def start(self) -> None:
        self._periodic.start()

    def stop(self) -> None:
        """Removes the label after the leadership has ended."""
        self._periodic.stop()
        if self._written:
            self.step()
