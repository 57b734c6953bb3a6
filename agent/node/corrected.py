"""The kubelet's PodResources on a socket of ours, for exporters: what containers really have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from agent.allocate.foreign.corrected import corrections
from agent.kubelet.corrected import CorrectedLister, Known
from agent.model.pods import Pod
from agent.model.wanted import PodWanted
from agent.node.devices import SeenDevices
from agent.node.sight import Sight

log = logging.getLogger(__name__)

_GRACE_SECONDS = 2.0


class Server(Protocol):
    """Listens already."""

    def start(self) -> None:
        """Answers from now on."""
        ...

    def stop(self, grace_seconds: float) -> None:
        """After the calls under way, or when time is up."""
        ...


Serve = Callable[[Callable[[str, bytes], bytes]], Server]
"""By a function of method and request, which raises RpcError. Raises OSError."""


class CorrectedPodResources:
    """Until the first look callers are told to come again."""

    def __init__(self, kubelet_socket: str, serve: Serve) -> None:
        self._lister = CorrectedLister(kubelet_socket, lambda: self._known)
        self._serve = serve
        self._known: Known | None = None
        self._server: Server | None = None

    def start(self) -> None:
        """Raises OSError."""
        self._server = self._serve(self._lister.answer)
        self._server.start()
        log.info("corrected PodResources are served")

    def looked(
        self,
        pods: Iterable[Pod],
        wanted: Mapping[str, PodWanted],
        seen: SeenDevices,
        sight: Sight | None,
    ) -> None:
        """What a look came to."""
        shown = sight.pods if sight else {}
        seeing = {
            uid: each.seeing(shown[uid].each, shown[uid].containers) if uid in shown else each
            for uid, each in wanted.items()
        }
        found = corrections(pods, seeing, seen.files, seen.report.devices)
        self._known = found, seen.keys

    def close(self) -> None:
        """Nobody is answered any more."""
        if self._server is not None:
            self._server.stop(_GRACE_SECONDS)
        self._lister.close()
