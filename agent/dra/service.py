"""The calls of the kubelet to a DRA driver: bytes in, bytes out.

A claim that can't be prepared has its reason in the reply; the kubelet shows it in an Event of the
pod and asks again. Both calls may come several times for one claim, and after a reboot the kubelet
prepares the claims of its pods again."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

from agent.allocate.dra.preparation import PreparationError
from agent.dra.cdi import cdi_name
from agent.model.dra.names import DRIVER
from agent.model.dra.prepared_claim import PreparedClaim
from agent.model.dra.resource_claim import is_uid
from agent.model.verdict import Code
from agent.proto import DecodeError, Message
from agent.proto import dra_pb2 as pb
from agent.rpc.grpc import RpcError

log = logging.getLogger(__name__)

SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH: Final = "v1alpha1.DRAResourceHealth"
REGISTRATION: Final = "pluginregistration.Registration"
VERSIONS: Final = ("v1.DRAPlugin", HEALTH)
"""The services as the registration names them."""
_PLUGIN_TYPE: Final = "DRAPlugin"
_MAX_ERROR: Final = 300
MAX_CLAIMS: Final = 1_024
"""The most claims of one call. A kubelet sends those of one pod."""
HEALTH_SECONDS: Final = 10.0
"""The time between two reports of the health of all devices."""
MOST_STREAMS: Final = 2
"""The most streams of health at a time, each of which has a thread of the server. A kubelet has
one, and that of one before it ends only with the next report."""
_HEALTH_TIMEOUT_SECONDS: Final = 30
"""The kubelet knows nothing about a device without a report for so long."""


class Claims(Protocol):
    """The agent's claims. Safe for threads."""

    def prepare(self, namespace: str, name: str, uid: str, waited_seconds: float) -> PreparedClaim:
        """Gives the claim its CPUs, and keeps it before it returns. Raises PreparationError.

        `waited_seconds`: how long the call has waited for other claims."""

    def unprepare(self, uid: str) -> None:
        """The claim loses its CPUs; it may be unknown. Raises PreparationError if that can't be
        kept."""

    def registered(self, problem: str) -> None:
        """The kubelet has registered the driver, or refused it for this reason."""

    def devices(self) -> Iterable[tuple[str, str, str]]:
        """The pool, the name and, if it is not healthy, the trouble of each published device."""


class DraService:
    """Answers the kubelet. Safe for threads.

    `endpoint`: the socket of the driver, as the kubelet sees it."""

    def __init__(self, claims: Claims, endpoint: str) -> None:
        self._claims = claims
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._streams: deque[threading.Event] = deque()
        """The ends of the streams, the oldest first."""
        self._closed = False

    def close(self) -> None:
        """Ends the streams."""
        with self._lock:
            self._closed = True
            for end in self._streams:
                end.set()

    def registration(self, _: bytes) -> bytes:
        """The plugin for GetInfo."""
        return pb.PluginInfo(
            type=_PLUGIN_TYPE,
            name=DRIVER,
            endpoint=self._endpoint,
            supported_versions=VERSIONS,
        ).SerializeToString()

    def notified(self, message: bytes) -> bytes:
        """The kubelet says whether it has registered the driver."""
        status = _read(pb.RegistrationStatus, message)
        problem = status.error[:_MAX_ERROR] or "it gives no reason"
        self._claims.registered("" if status.plugin_registered else problem)
        if status.plugin_registered:
            log.info("the kubelet has registered the driver %s", DRIVER)
        else:
            log.error("the kubelet does not register the driver %s: %s", DRIVER, problem)
        return b""

    def prepare(self, message: bytes) -> bytes:
        """NodePrepareResources. Raises RpcError for a message that can't be read."""
        response = pb.PrepareResponse()
        began = time.monotonic()
        for claim in _claims(message):
            waited_seconds = time.monotonic() - began
            try:
                prepared = self._claims.prepare(
                    claim.namespace, claim.name, claim.uid, waited_seconds
                )
            except PreparationError as error:
                log.warning("%s", error)
                response.claims[claim.uid].error = str(error)
            else:
                response.claims[claim.uid].CopyFrom(_prepared(prepared))
        return response.SerializeToString()

    def unprepare(self, message: bytes) -> bytes:
        """NodeUnprepareResources. Raises RpcError for a message that can't be read."""
        response = pb.UnprepareResponse()
        for claim in _claims(message):
            error_text = ""
            try:
                self._claims.unprepare(claim.uid)
            except PreparationError as error:
                log.error("%s", error)
                error_text = str(error)
            response.claims[claim.uid].error = error_text
        return response.SerializeToString()

    def health(self, active: Callable[[], bool]) -> Iterator[bytes]:
        """The health of all devices, again and again. A new stream ends the oldest of too many.

        `active`: whether the kubelet still listens."""
        end = threading.Event()
        with self._lock:
            if self._closed:
                return
            self._streams.append(end)
            if len(self._streams) > MOST_STREAMS:
                self._streams.popleft().set()
        try:
            yield from self._reports(active, end)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._streams.remove(end)

    def _reports(self, active: Callable[[], bool], end: threading.Event) -> Iterator[bytes]:
        while active() and not end.is_set():
            now = int(time.time())
            response = pb.WatchResourcesResponse()
            for pool, device, trouble in self._claims.devices():
                response.devices.add(
                    device=pb.DeviceIdentifier(pool_name=pool, device_name=device),
                    health=pb.UNHEALTHY if trouble else pb.HEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=_HEALTH_TIMEOUT_SECONDS,
                    message=trouble,
                )
            yield response.SerializeToString()
            end.wait(HEALTH_SECONDS)


_Message = TypeVar("_Message", bound=Message)


def _claims(message: bytes) -> list[pb.Claim]:
    claims = _read(pb.PrepareRequest, message).claims
    if len(claims) > MAX_CLAIMS:
        raise RpcError(Code.INVALID_ARGUMENT, f"claims: there are more than {MAX_CLAIMS}")
    for claim in claims:
        if not (claim.namespace and claim.name and is_uid(claim.uid)):
            text = f"claims: {claim.namespace!r}/{claim.name!r}: a name is missing, or the uid"
            raise RpcError(Code.INVALID_ARGUMENT, text)
    return list(claims)


def _prepared(claim: PreparedClaim) -> pb.Prepared:
    return pb.Prepared(
        devices=[
            pb.Device(
                request_names=[group.base_request],
                pool_name=group.pool,
                device_name=group.device,
                cdi_device_ids=[cdi_name(claim, group.base_request)] if group.cpus else [],
                share_id=group.share,
            )
            for group in claim.groups
        ]
    )


def _read(kind: type[_Message], message: bytes) -> _Message:
    try:
        return kind.FromString(message)
    except DecodeError as error:
        text = f"the request is not a {kind.__name__}: {error}"
        raise RpcError(Code.INVALID_ARGUMENT, text) from None
