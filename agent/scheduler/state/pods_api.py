"""Requests for pods to the API server: bind a pod, read it, list the unscheduled pods, patch the
status of a pod.

The API server copies the annotations of a Binding to the pod in the same write that sets the pod's
node.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from agent.kube import objects, wire
from agent.kube.auth import AccessError
from agent.kube.errors import ConflictError, KubeError, NotFoundError, ServerError, UnreachableError
from agent.kube.objects import pod_path
from agent.kube.transport import FIELD_MANAGER, STRATEGIC, Query, Transport
from agent.model.objects import ObjectError
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod
from agent.scheduler.state.pod_info import PodName

log = logging.getLogger(__name__)


class BindOutcome(msgspec.Struct, frozen=True):
    """`bound` is None if the outcome is unknown. `error` is the reason if `bound` is not True."""

    bound: bool | None
    error: str = ""


class PodError(RuntimeError):
    """A pod can't be read; the message is the reason."""


class BindingRecord(Protocol):
    """Records which Bindings have no answer yet (`leader.candidate`)."""

    def began(self, pod: PodName, node: str, annotations: Mapping[str, str]) -> None: ...

    def ended(self, uid: str, outcome: BindOutcome) -> None: ...


class BindingApi:
    """Sends Bindings, and reads pods. Safe for many threads."""

    def __init__(
        self,
        sending: Transport,
        reading: Transport | None = None,
        record: BindingRecord | None = None,
    ) -> None:
        """`reading` is the transport for reads of pods; its time limits are shorter than those of a
        Binding."""
        self._sending = sending
        self._reading = reading or sending
        self._record = record

    def bind(self, pod: PodName, node: str, annotations: Mapping[str, str]) -> BindOutcome:
        """Sends one Binding. If the answer does not determine the outcome, reads the pod."""
        if self._record is None:
            return self._bind(pod, node, annotations)
        try:
            self._record.began(pod, node, annotations)
        except OSError as error:
            return BindOutcome(False, f"pod {pod.title}: its Binding can't be recorded: {error}")
        outcome = self._bind(pod, node, annotations)
        self._record.ended(pod.uid, outcome)
        return outcome

    def _bind(self, pod: PodName, node: str, annotations: Mapping[str, str]) -> BindOutcome:
        try:
            self._sending.create(
                f"{pod_path(pod.namespace, pod.name)}/binding", _binding(pod, node, annotations)
            )
        except (ConflictError, ServerError, UnreachableError) as error:
            return self._resolve(pod, node, annotations, error)
        except (KubeError, AccessError) as error:
            return BindOutcome(False, str(error))
        return BindOutcome(True)

    def pod(self, pod: PodName) -> ApiPod | None:
        """Returns None if the pod does not exist or another pod has its name. Raises PodError."""
        try:
            found = apiobjects.decode(self._reading.get(pod_path(pod.namespace, pod.name)))
        except NotFoundError:
            return None
        except (KubeError, AccessError, ObjectError) as error:
            raise PodError(f"pod {pod.title}: {error}") from None
        return found if found.uid == pod.uid else None

    def _resolve(
        self, pod: PodName, node: str, annotations: Mapping[str, str], error: KubeError
    ) -> BindOutcome:
        """Determines the outcome of a Binding that was answered with `error`."""
        conflict = isinstance(error, ConflictError)
        try:
            found = self.pod(pod)
        except PodError as unknown:
            return BindOutcome(None, f"{error}; then {unknown}")
        if found is None:
            return BindOutcome(False, f"pod {pod.title} no longer exists")
        if not found.node:
            return BindOutcome(False if conflict else None, str(error))
        if found.node == node and annotations.items() <= found.annotations.items():
            return BindOutcome(True)
        return BindOutcome(False, f"pod {pod.title} is bound to node {found.node} already")


def unscheduled_pods(transport: Transport, scheduler: str) -> list[ApiPod]:
    """Lists the pods of that `schedulerName` that have no node. Logs and omits invalid pods. Raises
    KubeError and AccessError."""
    path = objects.path("", "v1", objects.POD.plural)
    select: Query = {"fieldSelector": f"spec.nodeName=,spec.schedulerName={scheduler}"}
    found = wire.listed(path, select, transport.get, _read).found
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
    RejectedError if another pod has the name by now, and AccessError."""
    query = {"fieldManager": FIELD_MANAGER, **({"dryRun": "All"} if dry_run else {})}
    transport.request(
        "PATCH",
        f"{pod_path(namespace, name)}/status",
        query,
        {"metadata": {"uid": uid}, "status": fields},
        STRATEGIC,
    )


def condition(type_: str, reason: str, message: str, status: str = "True") -> dict[str, str]:
    """A condition that has this status from now on."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }


def _binding(pod: PodName, node: str, annotations: Mapping[str, str]) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


class BindError(Exception):
    """The pod is not bound; the message says why."""
