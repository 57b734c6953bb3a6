"""A report becomes objects: NodeResourceTopology, the Node's labels and status, Device."""

from __future__ import annotations

from collections.abc import Callable

from agent.kube.errors import (
    KubeError,
    NotFoundError,
    ServerError,
    StoreError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from agent.kube.objects import Objects
from agent.model import deviceobject, nodestatus, nodetopology, resources
from agent.model.nodetopology import Version
from agent.model.report import MANAGER, Report
from agent.model.resources import MANAGED_BY


def deliver(objects: Objects, report: Report) -> bool:
    """Whether anything was written. One object that can't be written does not keep the rest from
    being; then raises a KubeError that names all of them. A server that does not serve is asked no
    more: raises its error."""
    name = report.topology.name
    parts: tuple[Callable[[], bool], ...] = (
        lambda: _deliver_topology(objects, report),
        lambda: objects.apply(resources.node(name, report.labels)),
        lambda: objects.apply_status(nodestatus.status(name, report.resources)),
        lambda: _deliver_devices(objects, report),
    )
    written = []
    failures: list[StoreError] = []
    for part in parts:
        try:
            written.append(part())
        except _ABOUT_THE_SERVER:
            raise
        except StoreError as error:
            failures.append(error)
    if failures:
        patience = [
            each.retry_after_seconds or 0 for each in failures if isinstance(each, KubeError)
        ]
        raise KubeError("; ".join(map(str, failures)), max(patience, default=0) or None)
    return any(written)


_ABOUT_THE_SERVER = (UnreachableError, ServerError, UnauthorizedError, TooManyRequestsError)


def _deliver_topology(objects: Objects, report: Report) -> bool:
    version = objects.version(nodetopology.KIND)
    if version is None:
        raise NotFoundError(
            f"{nodetopology.KIND} is not served: its CustomResourceDefinition is missing"
        )
    return objects.apply(nodetopology.encode(report.topology, Version(version)))


def _deliver_devices(objects: Objects, report: Report) -> bool:
    """A node without devices has no Device object, unless it had some."""
    name, told = report.topology.name, report.devices
    if not told.devices:
        before = objects.get(deviceobject.KIND, name)
        labels = (before or {}).get("metadata", {}).get("labels") or {}
        if labels.get(MANAGED_BY) != MANAGER[MANAGED_BY]:
            return False
    labels = {**MANAGER, **nodestatus.gpu_labels(told.gpus, told.devices)}
    return objects.apply(deviceobject.encode(name, told.listed, labels, told.annotations))
