"""The cluster's last known state in a file: while no server answers, also after a restart of the
agent, decisions stay as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import msgspec

from agent.allocate.present import metadata_by_uid
from agent.host import files
from agent.kubelet import configuration
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.model import bounds
from agent.model.apiobjects import ApiNode
from agent.model.bounds import JsonError
from agent.model.devicefiles import NO_FILES, DeviceFiles
from agent.model.devicelist import Published
from agent.model.pods import PodMetadata
from agent.node.cluster_view import ClusterState
from agent.node.sources import SourceName, Sources

MOST_BYTES: Final = 32 << 20
"""The largest file: the annotations of 370 pods, each as long as it may be."""
_NODE_KEYS = ("node.koordinator.sh/", "topolet.io/")


class ClusterStateSource(Protocol):
    """Knows the state of the cluster, as far as it concerns this node."""

    def now(self) -> ClusterState: ...


class CachedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`pods` by uid of the runtime's pods; `devices`: the Device object, which numbers them, None
    before it was read once. `files`: how containers reach the devices: some can't be seen while
    pods have them. `kubelet`: the last whole configuration of the kubelet
    (`kubelet.configuration.to_object`)."""

    node: ApiNode = ApiNode()
    pods: dict[str, PodMetadata] = {}
    devices: Published | None = None
    files: DeviceFiles = NO_FILES
    kubelet: dict[str, Any] = {}

    @property
    def configuration(self) -> KubeletConfiguration | None:
        """The kubelet's; None without one that can be read."""
        if not self.kubelet:
            return None
        try:
            return configuration.of_object(self.kubelet, "the last known configuration")
        except ConfigurationError:
            return None


class ClusterCache:
    """A source of the cluster's state, and the file with its last state, which is written when it
    changes. A lost file costs nothing while a server answers."""

    def __init__(
        self, source: ClusterStateSource, path: str, sources: Sources | None = None
    ) -> None:
        self._source = source
        self._path = path
        self._sources = sources or Sources()
        self._kubelet: KubeletConfiguration | None = None
        self._lost: tuple[str, ...] = ()
        self.known = self._stored()

    def now(self) -> ClusterState:
        """What the source knows now; `update` stores it."""
        return self._source.now()

    def update(self, state: ClusterState, listed: Iterable[str]) -> CachedState:
        """Stores a state; `listed`: uids of the pods that the runtime has."""
        self._keep(merged(self.known, state, listed))
        return self.known

    def store_devices(self, devices: Published, files: DeviceFiles = NO_FILES) -> None:
        """Stores the devices."""
        self._keep(msgspec.structs.replace(self.known, devices=devices, files=files))

    def store_kubelet(self, kubelet: KubeletConfiguration | None) -> None:
        """Stores the kubelet's configuration; None changes nothing."""
        if kubelet is not None and kubelet is not self._kubelet:
            self._kubelet = kubelet
            said = configuration.to_object(kubelet)
            self._keep(msgspec.structs.replace(self.known, kubelet=said))

    def _keep(self, new: CachedState) -> None:
        """Logs a file that can't be written. The next change tries again."""
        if new == self.known:
            return
        self.known = new
        try:
            files.replace(self._path, msgspec.json.encode(new), durable=False, mode=0o600)
        except OSError as error:
            self._report(f"the last state of the cluster is not stored: {error}")
        else:
            self._report()

    def _stored(self) -> CachedState:
        try:
            return bounds.decode(_decoder, files.read(self._path, MOST_BYTES))
        except FileNotFoundError:
            return CachedState()
        except (OSError, JsonError) as error:
            self._lost = (f"the last state of the cluster is lost: {self._path}: {error}",)
            self._report()
            return CachedState()

    def _report(self, *problems: str) -> None:
        self._sources.report(SourceName.CLUSTER_MEMORY, (*self._lost, *problems))


def merged(last: CachedState, state: ClusterState, listed: Iterable[str]) -> CachedState:
    """The last state of the Node, and of every pod that the runtime has, also when the API has it
    no more."""
    node = last.node
    if state.node is not None:
        labels, annotations = state.node.labels, state.node.annotations
        node = ApiNode(state.node.uid, _of_node(labels), _of_node(annotations))
    told = metadata_by_uid(state.pods.values())
    said = {uid: found for uid in sorted(listed) if (found := told.get(uid, last.pods.get(uid)))}
    return CachedState(node, said, last.devices, last.files, last.kubelet)


_decoder = msgspec.json.Decoder(CachedState)


def _of_node(texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text for key, text in sorted(texts.items()) if key.startswith(_NODE_KEYS)}
