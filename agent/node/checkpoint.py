"""What the kubelet's device checkpoint says that plugins gave to pods; a torn file leaves the last
good answer in force."""

from __future__ import annotations

import logging
import os
from typing import Final

from agent.host.boot import boot_id
from agent.host.files import stamp
from agent.kubelet import device_checkpoint, device_grants
from agent.kubelet.statefile import StateFileError
from agent.model.holding import Grant

FILE: Final = "device-plugins/kubelet_internal_checkpoint"

log = logging.getLogger(__name__)


class CheckpointView:
    """Reads the file again when it was written."""

    def __init__(self, kubelet_dir: str) -> None:
        self._path = os.path.join(kubelet_dir, FILE)
        self._boot_id = boot_id()
        self._stamp = stamp("")
        self._grants: tuple[Grant, ...] = ()
        self._said: frozenset[str] = frozenset()

    def grants(self) -> tuple[Grant, ...]:
        """None where no plugin ever met a kubelet here. What can't be read is logged once."""
        now = stamp(self._path)
        if now != self._stamp:
            try:
                read = device_checkpoint.read(self._path)
            except StateFileError as error:
                self._say((str(error),))
                return self._grants
            self._stamp = now
            self._grants, problems = device_grants.grants(read, self._boot_id)
            self._say(tuple(f"{self._path}: {each}" for each in problems))
        return self._grants

    def _say(self, problems: tuple[str, ...]) -> None:
        for problem in sorted(frozenset(problems) - self._said):
            log.warning("devices of pods: %s", problem)
        self._said = frozenset(problems)
