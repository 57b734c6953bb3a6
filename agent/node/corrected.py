"""The kubelet's PodResources on a socket of ours, for exporters, with what containers really
have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from agent.allocate.foreign.corrected import corrections
from agent.kubelet.corrected import CorrectedLister, Known
from agent.model.pods import Pod
from agent.model.wanted import PodWanted
from agent.node.device_visibility import DeviceVisibility
from agent.node.devices import DeviceState

log = logging.getLogger(__name__)

_GRACE_SECONDS = 2.0


class PodResourcesServer(Protocol):
    """A server that listens already."""

    def start(self) -> None:
        """Answers from now on."""
        ...

    def stop(self, grace_seconds: float) -> None:
        """Waits for the calls in progress, at most `grace_seconds`."""
        ...


Serve = Callable[[Callable[[str, bytes], bytes]], PodResourcesServer]
"""Makes a server of a function of method and request, which raises RpcError. Raises OSError."""


class CorrectedPodResources:
    """Before the first `update` callers get UNAVAILABLE."""

    def __init__(self, kubelet_socket: str, serve: Serve) -> None:
        self._lister = CorrectedLister(kubelet_socket, lambda: self._known)
        self._serve = serve
        self._known: Known | None = None
        self._server: PodResourcesServer | None = None

    def start(self) -> None:
        """Raises OSError."""
        self._server = self._serve(self._lister.answer)
        self._server.start()
        log.info("corrected PodResources are served")

    def update(
        self,
        pods: Iterable[Pod],
        wanted: Mapping[str, PodWanted],
        devices: DeviceState,
        visibility: DeviceVisibility | None,
    ) -> None:
        """Answers with this from now on."""
        shown = visibility.pods if visibility else {}
        seeing = {
            uid: each.seeing(shown[uid].each, shown[uid].containers) if uid in shown else each
            for uid, each in wanted.items()
        }
        found = corrections(pods, seeing, devices.files, devices.report.devices)
        self._known = found, devices.keys

    def close(self) -> None:
        """Ends the server."""
        if self._server is not None:
            self._server.stop(_GRACE_SECONDS)
        self._lister.close()
