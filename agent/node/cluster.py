"""This node's end of the cluster: what it is told, and what it says of itself."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

import msgspec

from agent.kube import auth
from agent.kube.auth import AccessError
from agent.kube.cluster import Cluster
from agent.kube.errors import ForbiddenError
from agent.kube.objects import Objects
from agent.kube.transport import Transport
from agent.model import apinode, deviceobject
from agent.model.devicelist import Published, published
from agent.model.objects import ObjectError
from agent.model.report import Report
from agent.model.settings import Settings
from agent.node.assigned import Assigned, Assignments
from agent.node.delivery import deliver
from agent.node.outbox import Outbox, Pace
from agent.node.report import Reporter
from agent.telemetry.metrics import AgentMetrics

log = logging.getLogger(__name__)


class ClusterSide:
    """With an API server reports go by an outbox; with a folder of files (standalone) they are
    written at once."""

    def __init__(
        self,
        objects: Objects,
        node_name: str,
        metrics: AgentMetrics,
        wake: Callable[[], None],
        pace: Pace | None,
    ) -> None:
        """`wake` is called on any thread when there is news; without `pace` there is no outbox."""
        self._objects = objects
        self._name = node_name
        self._wake = wake
        self._labels: dict[str, str] = {}
        self._devices: Published | None = None
        self._outbox: Outbox | None = None
        tell = self._deliver
        if pace is not None:
            self._outbox = Outbox(self._deliver, metrics, pace, first=self._read_devices)
            tell = self._outbox.put
        self.news = threading.Event()
        self.reporter = Reporter(node_name, tell, waits=pace is not None)
        self._assignments = Assignments(objects, node_name, self._changed)
        metrics.cluster_troubles.set_function(lambda: len(self.troubles()))

    def now(self) -> Assigned:
        """What the cluster says."""
        return msgspec.structs.replace(self._assignments.now(), devices=self._devices)

    def troubles(self) -> tuple[str, ...]:
        """What can't be asked or told at present, and why."""
        found = self._assignments.troubles()
        if self._outbox is not None and self._outbox.trouble:
            found += (self._outbox.trouble,)
        return found

    def start(self) -> None:
        """Raises StoreError where a folder can't be read."""
        if self._outbox is None:
            self._read_devices()
        self._assignments.start()

    def close(self) -> None:
        self._assignments.stop()
        if self._outbox is not None:
            self._outbox.close()

    def _read_devices(self) -> None:
        """What an agent before us said of devices: their numbers stay. Raises StoreError."""
        try:
            body = self._objects.get(deviceobject.KIND, self._name)
            told, problems = published(body) if body is not None else (Published(), ())
        except (ObjectError, ForbiddenError) as error:
            told, problems = Published(), (str(error),)
        for problem in problems:
            log.error("numbers of devices may change: %s", problem)
        self._devices = told
        self.news.set()
        self._wake()

    def _deliver(self, report: Report) -> bool:
        self._labels = report.labels
        return deliver(self._objects, report)

    def _changed(self) -> None:
        if self._outbox is not None:
            # Not before a watch has been heard: these begin at a moment of the node's own.
            self._outbox.start()
        node = self._assignments.now().node
        if node is not None and not self._labels.items() <= node.labels.items():
            self._objects.forget(apinode.KIND, self._name)
            if self._outbox is not None:
                self._outbox.again()
        self.news.set()
        self._wake()


def objects_of(settings: Settings, node_name: str, *, standalone: bool) -> Objects:
    """An API server's, or a folder's. Raises AccessError."""
    if standalone:
        from agent.kube.store import EmbeddedStore  # and with it YAML, a megabyte

        return EmbeddedStore(settings.store_dir or os.path.join(settings.state_dir, "objects"))
    try:
        access = auth.access(settings.kubeconfig, settings.service_account_dir)
    except AccessError as error:
        ways = "--kubeconfig says where one is, --standalone does without"
        raise AccessError(f"{error} ({ways})") from None
    return Cluster(Transport(access), node_name, recheck_seconds=settings.recheck_seconds)
