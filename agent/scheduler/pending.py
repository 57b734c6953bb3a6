"""The pods of one scheduler that have no node yet."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from agent.kube import kinds, wire
from agent.kube.listwatch import PAGE
from agent.kube.transport import Query, Transport
from agent.model import apipods
from agent.model.apipods import ApiPod
from agent.model.objects import ObjectError

log = logging.getLogger(__name__)


def pending(transport: Transport, scheduler: str) -> Iterator[ApiPod]:
    """Those of that `schedulerName`, as of now. One that can't be read is logged and left out.
    Raises KubeError and AccessError."""
    path = kinds.path("", "v1", kinds.POD.plural)
    query: Query = {**_SELECT, "fieldSelector": f"spec.nodeName=,spec.schedulerName={scheduler}"}
    token = ""
    while True:
        page = wire.page(
            f"GET {path}", transport.get(path, {**query, "continue": token} if token else query)
        )
        for raw in page.items or ():
            try:
                yield apipods.decode(bytes(raw))
            except ObjectError as error:
                log.error("%s", error)
        token = page.metadata.continue_
        if not token:
            return


_SELECT: Final = {"limit": PAGE}
