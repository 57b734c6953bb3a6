"""What the kubelet beside us gave away; a torn state file leaves the last good answer in force."""

from __future__ import annotations

import logging

from agent.allocate.pools import KubeletCpus
from agent.kubelet import cpu_manager_state

log = logging.getLogger(__name__)


class KubeletView:
    """Reads the state file of the CPU manager at every look."""

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{cpu_manager_state.FILE_NAME}"
        self._last = KubeletCpus()
        self._error = ""

    def cpus(self) -> KubeletCpus:
        """Never fails: an error is logged once."""
        try:
            state = cpu_manager_state.read(self._path)
        except cpu_manager_state.CpuManagerStateError as error:
            if str(error) != self._error:
                self._error = str(error)
                log.error("keeping the kubelet's last CPUs: %s", error)
            return self._last
        self._error = ""
        self._last = KubeletCpus(state.static, state.by_uid)
        return self._last
