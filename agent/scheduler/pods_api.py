"""Requests about pods to the API server: list the unscheduled pods, patch the status of a pod."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import msgspec

from agent.kube import kinds, listing
from agent.kube.kinds import pod_path
from agent.kube.transport import FIELD_MANAGER, STRATEGIC, Query, Transport
from agent.model import apiobjects
from agent.model.apiobjects import ApiPod
from agent.model.objects import ObjectError

log = logging.getLogger(__name__)


def unscheduled_pods(transport: Transport, scheduler: str) -> list[ApiPod]:
    """Lists the pods of that `schedulerName` that have no node. Logs and omits invalid pods. Raises
    KubeError and AccessError."""
    path = kinds.path("", "v1", kinds.POD.plural)
    select: Query = {"fieldSelector": f"spec.nodeName=,spec.schedulerName={scheduler}"}
    found = listing.listed(path, select, transport.get, _read).found
    return [pod for pod in found if pod is not None]


def _read(raw: msgspec.Raw) -> ApiPod | None:
    try:
        return apiobjects.decode(bytes(raw))
    except ObjectError as error:
        log.error("%s", error)
        return None


def patch_status(
    transport: Transport,
    namespace: str,
    name: str,
    uid: str,
    fields: dict[str, Any],
    *,
    dry_run: bool = False,
) -> None:
    """Merges conditions by their type, and replaces other fields. Raises KubeError, which is a
    RejectedError where another pod has the name by now, and AccessError."""
    query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
    transport.request(
        "PATCH",
        f"{pod_path(namespace, name)}/status",
        query,
        {"metadata": {"uid": uid}, "status": fields},
        STRATEGIC,
    )


def condition(type_: str, reason: str, message: str) -> dict[str, str]:
    """A condition that is true from now on."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": type_,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }
