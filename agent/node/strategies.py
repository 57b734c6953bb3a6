"""The strategies of this node: its NodeSLO, watched while the cluster has the kind, or our own
configuration, by the labels of the Node."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from agent.host import files
from agent.host.daemon import Periodic
from agent.kube.cluster import Cluster
from agent.kube.objects import NODE_SLO, Change, ChangeKind
from agent.model.bounds import JsonError
from agent.model.pod.annotations import STRATEGY_BYTES
from agent.model.pod.apiobjects import ApiNode, ApiPod
from agent.node.cluster_view import ClusterState
from agent.node.sources import SourceName, Sources
from agent.usage import slo_config, strategies
from agent.usage.slo_config import SloConfig
from agent.usage.strategies import Strategies

log = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 10.0
"""The time between two looks at the files of our configuration."""
CHECK_SECONDS: Final = 60.0
"""The time between two requests whether the cluster has the kind."""
_MAX_BYTES: Final = 1 << 20
"""A ConfigMap is not larger."""


class StrategiesView:
    """Keeps the strategies in force, also in a file: they do not change while no server answers,
    also after a restart of the agent.

    `cluster`: None without an API server, where no NodeSLO exists.
    `folder`: our own configuration; empty for none.
    `path`: the file.
    `changed`: called after a change, on any thread."""

    def __init__(
        self,
        cluster: Cluster | None,
        node_name: str,
        folder: str,
        path: str,
        sources: Sources,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node_name = node_name
        self._folder = folder
        self._path = path
        self._sources = sources
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._in_force = self._stored()
        self._kept = False
        self._of_object: Strategies | None = None
        self._heard = False
        """Whether the watch has reported what exists."""
        self._node: ApiNode | None = None if cluster is not None else ApiNode()
        self._overriding: tuple[ApiPod, ...] | None = None
        self._config = SloConfig()
        self._faults: tuple[str, ...] = ()
        self._unread = ""
        self._stamp: files.Stamp | None = None
        self._watch = (
            cluster.watch_named(NODE_SLO, node_name, strategies.of_object, self._reported)
            if cluster is not None
            else None
        )
        self._check_at: float | None = None
        self._thread = Periodic("strategies", _PERIOD_SECONDS, self.step)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()
        if self._watch is not None:
            self._watch.stop()

    def now(self) -> Strategies:
        """What is in force."""
        return self._in_force

    def follow(self, cluster: ClusterState) -> None:
        """The Node selects the strategies of our configuration, and its pods may override them."""
        node, pods = cluster.node or self._node, self._overriding
        if cluster.pods_listed:
            pods = tuple(
                pod
                for pod in cluster.pods.values()
                if not STRATEGY_BYTES.keys().isdisjoint(pod.annotations)
            )
        if (node, pods) != (self._node, self._overriding):
            self._node, self._overriding = node, pods
            self._update()

    def step(self) -> None:
        """Looks for the kind, and for changes of our configuration. Never raises."""
        now = self._clock()
        if self._watch is not None and (self._check_at is None or now >= self._check_at):
            self._watch.check()
            self._check_at = now + CHECK_SECONDS
        self._read_folder()
        self._update()

    def _reported(self, changes: Sequence[Change[Strategies]]) -> None:
        for change in changes:
            self._of_object = None if change.kind is ChangeKind.DELETED else change.value
        self._heard = True
        self._update()

    def _read_folder(self) -> None:
        if not self._folder:
            return
        paths = {key: os.path.join(self._folder, key) for key in slo_config.KEYS}
        stamp = files.stamp(self._folder, *paths.values())
        if stamp == self._stamp:
            return
        texts = {}
        try:
            os.listdir(self._folder)
            for key, path in paths.items():
                with contextlib.suppress(FileNotFoundError):
                    texts[key] = files.read(path, _MAX_BYTES)
        except OSError as error:
            self._unread = f"{files.reason(error)}; the last configuration stays in force"
            return
        self._config, faults = slo_config.parsed(texts, self._config)
        self._stamp, self._unread = stamp, ""
        self._faults = tuple(f"{self._folder}/{fault}" for fault in faults)

    def _update(self) -> None:
        with self._lock:
            in_force = self._chosen()
            troubles = (*in_force.troubles, *in_force.pod_troubles)
            self._sources.report(SourceName.STRATEGIES, (*troubles, *in_force.unread))
            if in_force == self._in_force and self._kept:
                return
            self._in_force, self._kept = in_force, True
            self._keep(in_force)
        self._changed()

    def _chosen(self) -> Strategies:
        last = self._in_force
        in_force = self._of_node() or last
        if self._overriding is not None:
            in_force = strategies.with_pods(in_force, self._overriding)
        elif in_force is not last:
            in_force = msgspec.structs.replace(
                in_force, pods=last.pods, pod_troubles=last.pod_troubles
            )
        failing = self._watch.problem if self._watch is not None else None
        unread = tuple(filter(None, (failing, self._unread)))
        return msgspec.structs.replace(in_force, unread=unread)

    def _of_node(self) -> Strategies | None:
        """None while the NodeSLO or the Node is not known: the last strategies stay."""
        if self._watch is not None and not (self._heard or self._watch.synced):
            return None
        if self._of_object is not None:
            return self._of_object
        if not self._folder:
            return Strategies()
        if self._node is None or self._stamp is None:
            return None
        of_node = strategies.of_config(self._config, self._node.labels, self._node.annotations)
        troubles = (*self._faults, *of_node.troubles)
        return msgspec.structs.replace(of_node, troubles=troubles)

    def _keep(self, in_force: Strategies) -> None:
        try:
            files.replace(self._path, msgspec.json.encode(in_force), durable=False)
        except OSError as error:
            log.warning("the strategies are not kept: %s", files.reason(error))

    def _stored(self) -> Strategies:
        try:
            return strategies.read(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("the last strategies are lost: %s", files.reason(error))
        except JsonError as error:
            log.warning("the last strategies are lost: %s: %s", self._path, error)
        return Strategies()
