"""A report becomes objects: NodeResourceTopology, the Node's labels and status, Device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from agent.kube.errors import KubeError, NotFoundError, StoreError
from agent.kube.objects import Objects
from agent.model import deviceobject, nodestatus, nodetopology, resources
from agent.model.nodetopology import Version
from agent.model.report import MANAGER, Report
from agent.model.resources import MANAGED_BY


def deliver(objects: Objects, report: Report) -> bool:
    """Whether anything was written. What can't be written does not keep the rest from being; then
    raises a KubeError that names all of it."""
    name = report.topology.name
    failures: list[StoreError] = []

    @contextlib.contextmanager
    def part() -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            failures.append(error)

    written = []
    with part():
        version = objects.version(nodetopology.KIND)
        if version is None:
            raise NotFoundError(
                f"{nodetopology.KIND} is not served: its CustomResourceDefinition is missing"
            )
        written.append(objects.apply(nodetopology.encode(report.topology, Version(version))))
    with part():
        written.append(objects.apply(resources.node(name, report.labels)))
    with part():
        written.append(objects.apply_status(nodestatus.status(name, report.resources)))
    with part():
        written.append(_deliver_devices(objects, report))
    if failures:
        patience = [
            each.retry_after_seconds or 0 for each in failures if isinstance(each, KubeError)
        ]
        raise KubeError("; ".join(map(str, failures)), max(patience, default=0) or None)
    return any(written)


def _deliver_devices(objects: Objects, report: Report) -> bool:
    """A node without devices has no Device object, unless it had some."""
    name, inventory = report.topology.name, report.inventory
    if not inventory.devices:
        before = objects.get(deviceobject.KIND, name)
        labels = (before or {}).get("metadata", {}).get("labels") or {}
        if labels.get(MANAGED_BY) != MANAGER[MANAGED_BY]:
            return False
    labels = {**MANAGER, **nodestatus.gpu_labels(inventory.gpus, inventory.devices)}
    return objects.apply(
        deviceobject.encode(name, inventory.devices, labels, inventory.annotations)
    )
