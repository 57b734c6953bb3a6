"""What people and schedulers hear of the node's claims: the status of each claim names its CPUs, a
pod that requests less than its claims have is told so, and one whose claims only another node can
prepare is evicted. No answer to the kubelet waits for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from agent.allocate.dra import claim_status, refusals
from agent.allocate.dra.requests import LowRequest, low_requests
from agent.host import files
from agent.host.daemon import Periodic
from agent.host.log_once import Problem, about
from agent.kube.auth import AccessError
from agent.kube.errors import ConflictError, KubeError, NotFoundError, RejectedError
from agent.kube.events import Regarding
from agent.kube.eviction import EVICTED, EvictionResult
from agent.kube.objects import rfc3339
from agent.node.resource_claims import ResourceClaims
from agent.view import dra
from agent.view.dra import ShownDra

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 60.0
"""After an error of the API server."""
LOW_REQUEST: Final = "RequestBelowClaims"

_Devices = tuple[Mapping[str, Any], ...]


class ClaimCluster(Protocol):
    """The API server."""

    def apply_claim_status(self, namespace: str, name: str, status: dict[str, Any]) -> None:
        """Raises KubeError and AccessError."""

    def evict_pod(self, pod: Regarding, *, kill: bool) -> EvictionResult:
        """Raises KubeError and AccessError."""


class ClaimReports:
    """Writes on a thread of its own.

    `record`: records a warning about a pod.
    `unpublished`: returns why devices are not published, "" if they are.
    `path`: the file that people's commands read."""

    def __init__(
        self,
        cluster: ClaimCluster,
        claims: ResourceClaims,
        record: Callable[[Regarding, str, str], None],
        unpublished: Callable[[], str],
        path: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._claims = claims
        self._record = record
        self._unpublished = unpublished
        self._path = path
        self._shown: ShownDra | None = None
        self._untold = Problem(log, f"{path}: ")
        self._clock = clock
        self._thread = Periodic("claim-reports", PERIOD_SECONDS, self.step, SETTLE_SECONDS)
        self._written: dict[str, tuple[str, str, _Devices]] = {}
        """By uid, the namespace, the name and the devices."""
        self._write_at = self._evict_at = 0.0
        self._unwritten = Problem(log, "status of ResourceClaims: ")
        self._unevicted = Problem(log, "")
        self._told: frozenset[str] = frozenset()
        self.low: tuple[LowRequest, ...] = ()
        """The pods that request less than their claims have."""
        self.evicted = 0
        """How many pods have been evicted."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()

    def changed(self) -> None:
        """From any thread: claims have changed."""
        self._thread.hurry()

    def step(self) -> None:
        """Never raises."""
        now = self._clock()
        if now >= self._write_at:
            try:
                self._write()
            except (KubeError, AccessError) as error:
                self._write_at = now + RETRY_SECONDS
                self._unwritten.report(str(error))
            else:
                self._unwritten.clear()
        self._tell()
        if now >= self._evict_at:
            self._evict(now)
        self._show()

    def _show(self) -> None:
        """Writes the file when something differs."""
        claims = self._claims
        shown = dra.shown(
            claims.groups(),
            claims.now().values(),
            claims.refused(),
            claims.pods,
            self.low,
            registration=claims.registration,
            problem=self._unpublished(),
        )
        if shown == self._shown:
            return
        try:
            files.replace(self._path, msgspec.json.encode(shown), durable=False)
        except OSError as error:
            self._untold.report(files.reason(error))
        else:
            self._untold.clear()
            self._shown = shown

    def _write(self) -> None:
        """Writes what differs. Raises KubeError and AccessError."""
        topology = self._claims.topology
        if topology is None:
            return
        claims = self._claims.now()
        for uid, claim in claims.items():
            devices = claim_status.devices(claim, topology)
            before = self._written.get(uid)
            if before is not None and before[2] == devices:
                continue
            at = claim.prepared_at if before is None and claim.prepared_at else round(time.time())
            self._apply(uid, claim.namespace, claim.name, devices, at)
            self._written[uid] = claim.namespace, claim.name, devices
        for uid in [*self._written.keys() - claims.keys()]:
            namespace, name, devices = self._written[uid]
            if devices:
                self._apply(uid, namespace, name, (), 0)
            del self._written[uid]

    def _apply(self, uid: str, namespace: str, name: str, devices: _Devices, at: int) -> None:
        """Raises KubeError and AccessError.

        `at`: when the conditions changed, in seconds since 1970."""
        changed = {"lastTransitionTime": rfc3339(at)}
        status = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "status": {
                "devices": [
                    {
                        **device,
                        "conditions": [
                            {**condition, **changed} for condition in device["conditions"]
                        ],
                    }
                    for device in devices
                ]
            },
        }
        try:
            self._cluster.apply_claim_status(namespace, name, status)
        except (NotFoundError, ConflictError):
            pass  # The claim is gone, and its end is on its way.
        except RejectedError as error:
            # As of a claim that was deallocated meanwhile.
            log.info("status of ResourceClaim %s/%s: %s", namespace, name, error)

    def _tell(self) -> None:
        self.low = low_requests(self._claims.pods, self._claims.node_claims())
        for low in self.low:
            if low.pod.uid not in self._told:
                pod = Regarding(low.pod.namespace, low.pod.name, low.pod.uid)
                log.warning("pod %s: %s", low.pod.title, low.text, extra=about(low.pod.title))
                self._record(pod, LOW_REQUEST, low.text)
        self._told = frozenset(low.pod.uid for low in self.low)

    def _evict(self, now: float) -> None:
        leaver = refusals.leaver(self._claims.refused(), self._claims.pods, now)
        if leaver is None:
            return
        api_pod, claim = leaver
        self._evict_at = now + refusals.PAUSE_SECONDS
        pod = Regarding(api_pod.namespace, api_pod.name, api_pod.uid)
        try:
            answer = self._cluster.evict_pod(pod, kill=False)
        except (KubeError, AccessError) as error:
            self._unevicted.report(f"pod {api_pod.title} can't be evicted: {error}")
            return
        self._unevicted.clear()
        if answer is EvictionResult.EVICTED:
            self.evicted += 1
            text = f"another node may prepare its claim: {claim.reason}"
            log.warning("pod %s is evicted: %s", api_pod.title, text, extra=about(api_pod.title))
            self._record(pod, EVICTED, text)
