"""The pods of one scheduler that have no node yet."""

from __future__ import annotations

import logging

import msgspec

from agent.kube import kinds, listing
from agent.kube.transport import Query, Transport
from agent.model import apipods
from agent.model.apipods import ApiPod
from agent.model.objects import ObjectError

log = logging.getLogger(__name__)


def pending(transport: Transport, scheduler: str) -> list[ApiPod]:
    """Those of that `schedulerName`, as of now. One that can't be read is logged and left out.
    Raises KubeError and AccessError."""
    path = kinds.path("", "v1", kinds.POD.plural)
    select: Query = {"fieldSelector": f"spec.nodeName=,spec.schedulerName={scheduler}"}
    found = listing.listed(path, select, transport.get, _read).found
    return [pod for pod in found if pod is not None]


def _read(raw: msgspec.Raw) -> ApiPod | None:
    try:
        return apipods.decode(bytes(raw))
    except ObjectError as error:
        log.error("%s", error)
        return None
