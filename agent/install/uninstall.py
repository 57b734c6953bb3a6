"""The removal of Topolet from a node (`topolet uninstall-node`): undoes what Topolet changed, and
nothing that others changed.

The parts are independent: each is done even if another one fails, can be repeated, and what could
not be done is listed. Of objects, the fields that the agent's field manager owns are removed, by an
apply without them; a field that another manager owns too stays.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from agent.allocate.dra.slices import slice_name
from agent.cgroup.order import WriteState
from agent.dra.cdi import CdiFiles
from agent.guard import LOCK as GUARD_LOCK
from agent.host import files
from agent.host.locks import AGENT_LOCK, FRONTEND_LOCK
from agent.install.installer import CheckError
from agent.install.proxy import ERRORS, ProxyInstallation, ReportLine
from agent.kube.cluster import managers
from agent.kube.errors import StoreError
from agent.kube.objects import RESOURCE_SLICE, Objects
from agent.kube.transport import FIELD_MANAGER
from agent.model import notifications, snapshot
from agent.model.bounds import JsonError
from agent.model.devices import device_object
from agent.model.dra import prepared_claim
from agent.model.dra.names import CLAIMS_FILE, DRIVER, PLUGIN_DIR, REGISTRY, SHOWN_FILE
from agent.model.nrt import node_status, resource_topology
from agent.model.settings.agent import UninstallSettings
from agent.model.settings.options import PROXY_SOCKET, RUNTIME_ENDPOINT, SettingsError, proxy_socket
from agent.node import originals
from agent.rpc.grpc import RpcError
from agent.telemetry.audit import Trail
from agent.usage import (
    COLOCATION_FILE,
    EVICTIONS_FILE,
    OFFERED_FILE,
    QUIET_FILE,
    STRATEGIES_FILE,
    WAITS_FILE,
    predictor,
)

_OWN_STATE: Final = (
    snapshot.FILE,
    "cluster.json",
    "journal",
    AGENT_LOCK,
    notifications.SOCKET,
    predictor.FILE,
    COLOCATION_FILE,
    EVICTIONS_FILE,
    OFFERED_FILE,
    QUIET_FILE,
    SHOWN_FILE,
    STRATEGIES_FILE,
    WAITS_FILE,
)
"""Files of Topolet's processes in the state folder."""
_FRONTEND_STATE: Final = (PROXY_SOCKET, FRONTEND_LOCK, GUARD_LOCK)
"""Further files there, which a proxy that is not removed needs."""
_OWN_FOLDERS: Final = {
    "audit": "*.jsonl",
    "containers": "cpus",
    "objects/device": "*.yaml",
    "objects/node": "*.yaml",
    "objects/noderesourcetopology": "*.yaml",
    "objects": "",
}
"""Folders of Topolet in the state folder, with the pattern of its files in them. Files of other
names stay: people may add pods to `objects`."""
_ERRORS: Final = (*ERRORS, JsonError, RpcError, SettingsError, StoreError)


class NodeRemoval:
    """Removes Topolet from this node.

    `objects`: the objects of the API server, None if they are not to be changed.
    `installation`: the proxy's, None if the proxy and its files stay.
    `report`: called with a line for each part that was done."""

    def __init__(
        self,
        settings: UninstallSettings,
        node_name: str,
        objects: Objects | None,
        installation: ProxyInstallation | None,
        report: ReportLine,
    ) -> None:
        self.left: list[str] = []
        """A line for everything that is left."""
        self._settings = settings
        self._node_name = node_name
        self._objects = objects
        self._installation = installation
        self._report = report

    def run(self) -> bool:
        """Undoes everything. Returns whether nothing is left."""
        runtime = self._runtime()
        if self._installation is not None:
            self._remove_proxy(self._installation)
        restored = self._restore(runtime)
        with self._part("files of the DRA driver"):
            self._remove_driver()
        if self._objects is not None:
            self._remove_from_objects(self._objects)
        if restored:
            with self._part(f"files in {self._settings.state_dir}"):
                self._remove_state()
        else:
            self.left.append(f"{self._settings.state_dir}: it has the original values of cgroups")
        return not self.left

    def _remove_proxy(self, installation: ProxyInstallation) -> None:
        with self._part("the kubelet's endpoint and the proxy"):
            removed = installation.remove()
            self._report("the proxy is removed" if removed else "no proxy was installed")

    def _runtime(self) -> str:
        """The runtime's endpoint. It is read before the proxy is removed, because only its
        installation may name it."""
        if self._installation is None:
            return self._settings.runtime_endpoint or RUNTIME_ENDPOINT
        try:
            return self._installation.runtime()
        except _ERRORS:
            return RUNTIME_ENDPOINT

    def _restore(self, runtime: str) -> bool:
        """Restores the cgroups. Returns whether all have their original values."""
        if not os.path.isdir(self._settings.state_dir):
            self._report("cgroups: nothing to restore")
            return True
        settings = msgspec.structs.replace(self._settings, runtime_endpoint=runtime)
        with self._part("cgroups"):
            trail = Trail(settings.state_dir, "uninstall-node")
            restored = originals.restore(settings, trail.append)
            failed = [
                f"{outcome.group}: {outcome.note}"
                for outcome in restored.outcome.having(WriteState.FAILED)
            ]
            failed += [
                f"{outcome.group} {outcome.file}: {outcome.note}"
                for outcome in restored.values.having(WriteState.FAILED)
            ]
            failed += restored.not_updated
            self.left += (f"cgroups: {failure}" for failure in failed)
            self._report(f"cgroups: {len(restored.outcome.having(WriteState.WRITTEN))} restored")
            return not failed
        return False

    def _remove_driver(self) -> None:
        """Raises OSError and JsonError."""
        registry = os.path.join(self._settings.kubelet_dir, REGISTRY)
        with contextlib.suppress(FileNotFoundError):
            for name in fnmatch.filter(os.listdir(registry), f"{DRIVER}-*-reg.sock"):
                os.unlink(os.path.join(registry, name))
        folder = os.path.join(self._settings.kubelet_dir, PLUGIN_DIR)
        CdiFiles(self._settings.cdi_dir, folder).remove_others(())
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        path = os.path.join(self._settings.state_dir, CLAIMS_FILE)
        with contextlib.suppress(FileNotFoundError):
            claims, _ = prepared_claim.decode(files.read(path, prepared_claim.MAX_BYTES))
            if not claims:
                os.unlink(path)
            for claim in claims:
                self.left.append(
                    f"ResourceClaim {claim.title}: its pods can't end before the driver {DRIVER} "
                    f"runs here again; {path} stays for it"
                )

    def _remove_slices(self, objects: Objects) -> bool:
        """Returns whether there were some. Raises StoreError."""
        removed = False
        for index in itertools.count():
            name = slice_name(self._node_name, index)
            if objects.get(RESOURCE_SLICE.name, name) is None:
                return removed
            removed = objects.delete(RESOURCE_SLICE.name, name) or removed
        return removed

    def _remove_from_objects(self, objects: Objects) -> None:
        name = self._node_name
        parts: tuple[tuple[str, Callable[[], bool]], ...] = (
            ("labels of the Node", lambda: objects.apply(node_status.node(name, {}))),
            (
                "extended resources of the Node",
                lambda: objects.apply_status(node_status.status(name, {})),
            ),
            (
                resource_topology.KIND,
                lambda: self._remove_object(objects, resource_topology.KIND, {"zones": []}),
            ),
            (
                device_object.KIND,
                lambda: self._remove_object(objects, device_object.KIND, {"spec": {"devices": []}}),
            ),
            ("ResourceSlices", lambda: self._remove_slices(objects)),
        )
        if self.left:
            # `topolet uninstall-nodes` finds the node by its labels.
            self.left.append("labels of the Node: they stay until nothing is left on the host")
            parts = parts[1:]
        for title, remove in parts:
            with self._part(title):
                self._report(f"{title}: {'removed' if remove() else 'nothing of Topolet'}")

    def _remove_object(self, objects: Objects, kind: str, empty: dict[str, Any]) -> bool:
        """Deletes the object if only Topolet wrote in it, otherwise removes Topolet's part. Returns
        whether there was one.

        Raises StoreError, CheckError."""
        stored = objects.get(kind, self._node_name)
        writers = set() if stored is None else managers(stored)
        if stored is None or FIELD_MANAGER not in writers:
            return False
        if writers == {FIELD_MANAGER}:
            return objects.delete(kind, self._node_name)
        if kind == resource_topology.KIND and not _zones_of_others(stored):
            raise CheckError(
                "others wrote in it, and the API server accepts no object without zones: "
                "delete it if nobody needs it"
            )
        metadata = {"name": self._node_name}
        version = stored["apiVersion"]
        return objects.apply({"apiVersion": version, "kind": kind, "metadata": metadata, **empty})

    def _remove_state(self) -> None:
        folder = self._settings.state_dir
        if not os.path.isdir(folder):
            return
        proxy_stays = self._installation is None and os.path.exists(proxy_socket(folder))
        for name in (*_OWN_STATE, *(() if proxy_stays else _FRONTEND_STATE)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        for name, pattern in _OWN_FOLDERS.items():
            _remove_files(os.path.join(folder, name), pattern)
        if proxy_stays:
            self._report(f"{folder}: stays, because the proxy has its socket there")
        elif others := sorted({*os.listdir(folder)} - {CLAIMS_FILE}):
            self._report(f"{folder}: stays, because it has files of others: {', '.join(others)}")
        else:
            # In a container the folder is a mount, which can't be removed.
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    @contextlib.contextmanager
    def _part(self, title: str) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            self.left.append(f"{title}: {error}")


def _remove_files(top: str, pattern: str) -> None:
    """Removes the files with names of this pattern in and below a folder, and folders that are
    empty then."""
    for folder, _, names in os.walk(top, topdown=False):
        for name in fnmatch.filter(names, pattern):
            os.unlink(os.path.join(folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _zones_of_others(reported: dict[str, Any]) -> bool:
    """Whether the NodeResourceTopology has zones that Topolet did not write."""
    names = (zone.get("name", "") for zone in reported.get("zones") or ())
    return any(not resource_topology.is_own_entry(("zones",), name) for name in names)
