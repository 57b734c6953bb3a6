"""What a scheduler writes into the status of pods: conditions, and the node that it has in mind."""

from __future__ import annotations

import datetime
from typing import Any

from agent.kube.kinds import pod_path
from agent.kube.transport import FIELD_MANAGER, STRATEGIC, Transport


def patch_status(
    transport: Transport,
    namespace: str,
    name: str,
    uid: str,
    fields: dict[str, Any],
    *,
    dry_run: bool = False,
) -> None:
    """Conditions are merged by their type, other fields replaced. Raises KubeError, a RejectedError
    where the pod is another one by now, and AccessError."""
    query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
    transport.request(
        "PATCH",
        f"{pod_path(namespace, name)}/status",
        query,
        {"metadata": {"uid": uid}, "status": fields},
        STRATEGIC,
    )


def condition(type_: str, reason: str, message: str) -> dict[str, str]:
    """One that is true since now."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": type_,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }
