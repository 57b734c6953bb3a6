"""What the kubelet beside us gave away; a torn state file leaves the last good answer in force."""

from __future__ import annotations

import logging

from agent.allocate.aside import KubeletCpus
from agent.kubelet import cpu_manager_state
from agent.kubelet.statefile import StateFileError

log = logging.getLogger(__name__)


class KubeletView:
    """Reads the state file of the CPU manager at every look."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{cpu_manager_state.FILE_NAME}"
        self._last: KubeletCpus | None = None
        self._said = ""

    def cpus(self) -> KubeletCpus:
        """An error, and what of the file can't be read, is logged once. Raises StateFileError while
        no answer is known: containers that the kubelet gave CPUs can't be told from the others."""
        try:
            state = cpu_manager_state.read(self._path)
        except StateFileError as error:
            if self._last is None:
                raise
            self._say(f"keeping the kubelet's last CPUs: {error}")
            return self._last
        trouble = "; ".join(state.problems)
        self._say(f"{self._path}: not used: {trouble}" if trouble else "")
        # A container that can't be read is in no entry, and yet not on the shared pool.
        containers = {
            uid: tuple(sorted(of_pod))
            for uid, of_pod in state.entries.items()
            if of_pod and uid not in state.pods and not state.problems
        }
        self._last = KubeletCpus(state.static, state.by_uid, containers)
        return self._last

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            log.error("%s", trouble)
        self._said = trouble
