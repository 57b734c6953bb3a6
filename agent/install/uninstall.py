"""`topolet uninstall-node`: takes back what Topolet changed on a node, and nothing of others.

Each part is done although another one fails, and can be repeated: what could not be done is listed.
The agent's fields of objects are those that its field manager owns: an apply without them removes
them, and fields that another manager owns too stay.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from agent.cgroup.outcome import WriteState
from agent.host.locks import AGENT_LOCK, FRONTEND_LOCK
from agent.install.checks import CheckError
from agent.install.proxy import ERRORS, ProxyInstallation, Say
from agent.kube.errors import StoreError
from agent.kube.objects import Objects
from agent.kube.transport import FIELD_MANAGER
from agent.model.devices import device_object
from agent.model.nrt import node_status, resource_topology
from agent.model.settings.agent import UninstallSettings
from agent.model.settings.options import RUNTIME_ENDPOINT, SettingsError
from agent.node import originals
from agent.rpc.grpc import RpcError
from agent.telemetry.audit import Trail

_OWN_STATE: Final = (
    "snapshot.json",
    "cluster.json",
    "journal",
    AGENT_LOCK,
    "doorbell.sock",
)
"""The files that Topolet's processes make in the state folder."""
_SOCKET: Final = "cri.sock"
_OF_FRONTENDS: Final = (_SOCKET, FRONTEND_LOCK)
"""A proxy that stays needs them."""
_OWN_FOLDERS: Final = {
    "audit": "*.jsonl",
    "containers": "cpus",
    "objects/device": "*.yaml",
    "objects/node": "*.yaml",
    "objects/noderesourcetopology": "*.yaml",
    "objects": "",
}
"""Its folders, with the names of the files in and below them. People add pods to the objects."""
_ERRORS: Final = (*ERRORS, RpcError, SettingsError, StoreError)


class NodeRemoval:
    """`objects`: the API server's; None leaves them as they are. `installation`: None leaves a
    proxy, and the files that it needs. `say` reports what was done; `left` says what was not."""

    def __init__(
        self,
        settings: UninstallSettings,
        node_name: str,
        objects: Objects | None,
        installation: ProxyInstallation | None,
        say: Say,
    ) -> None:
        self.left: list[str] = []
        self._settings = settings
        self._node_name = node_name
        self._objects = objects
        self._installation = installation
        self._say = say

    def run(self) -> bool:
        """Whether everything is taken back."""
        runtime = self._runtime()
        if self._installation is not None:
            self._remove_proxy(self._installation)
        restored = self._restore(runtime)
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
            self._say("the proxy is removed" if removed else "no proxy was installed")

    def _runtime(self) -> str:
        """Before the proxy is removed: it says which runtime is behind it."""
        if self._installation is None:
            return self._settings.runtime_endpoint or RUNTIME_ENDPOINT
        try:
            return self._installation.runtime()
        except _ERRORS:
            return RUNTIME_ENDPOINT

    def _restore(self, runtime: str) -> bool:
        """Whether every cgroup has its original values."""
        if not os.path.isdir(self._settings.state_dir):
            self._say("cgroups: nothing to restore")
            return True
        settings = msgspec.structs.replace(self._settings, runtime_endpoint=runtime)
        with self._part("cgroups"):
            trail = Trail(settings.state_dir, "uninstall-node", settings.audit_mebibytes << 20)
            restored = originals.restore(settings, trail.append)
            failed = [
                f"{each.group}: {each.note}" for each in restored.outcome.having(WriteState.FAILED)
            ]
            failed += [
                f"{each.group} {each.file}: {each.note}"
                for each in restored.values.having(WriteState.FAILED)
            ]
            if restored.unchecked:
                failed.append(restored.unchecked)
            self.left += (f"cgroups: {each}" for each in failed)
            self._say(f"cgroups: {len(restored.outcome.having(WriteState.WRITTEN))} restored")
            return not failed
        return False

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
        )
        if self.left:
            # By them `topolet uninstall-nodes` finds the node again.
            self.left.append("labels of the Node: they stay while something of the host is left")
            parts = parts[1:]
        for title, remove in parts:
            with self._part(title):
                self._say(f"{title}: {'removed' if remove() else 'nothing of ours'}")

    def _remove_object(self, objects: Objects, kind: str, empty: dict[str, Any]) -> bool:
        """Deletes an object in which only Topolet wrote, and removes its part of another."""
        found = objects.get(kind, self._node_name)
        managers = set() if found is None else _managers(found)
        if found is None or FIELD_MANAGER not in managers:
            return False
        if managers == {FIELD_MANAGER}:
            return objects.delete(kind, self._node_name)
        if kind == resource_topology.KIND and not _zones_of_others(found):
            raise CheckError(
                "others wrote in it, and the API server takes none without zones: delete it if "
                "nobody needs it"
            )
        metadata = {"name": self._node_name}
        version = found["apiVersion"]
        return objects.apply({"apiVersion": version, "kind": kind, "metadata": metadata, **empty})

    def _remove_state(self) -> None:
        folder = self._settings.state_dir
        if not os.path.isdir(folder):
            return
        proxy_stays = self._installation is None and os.path.exists(os.path.join(folder, _SOCKET))
        for name in (*_OWN_STATE, *(() if proxy_stays else _OF_FRONTENDS)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        for name, pattern in _OWN_FOLDERS.items():
            _remove_files(os.path.join(folder, name), pattern)
        if proxy_stays:
            self._say(f"{folder}: the proxy has its socket there")
        elif others := sorted(os.listdir(folder)):
            self._say(f"{folder}: has files of others: {', '.join(others)}")
        else:
            # A container has it as a mount, which stays.
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    @contextlib.contextmanager
    def _part(self, title: str) -> Iterator[None]:
        try:
            yield
        except _ERRORS as error:
            self.left.append(f"{title}: {error}")


def _remove_files(top: str, pattern: str) -> None:
    """And the folders that hold nothing then."""
    for folder, _, names in os.walk(top, topdown=False):
        for name in fnmatch.filter(names, pattern):
            os.unlink(os.path.join(folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _zones_of_others(found: dict[str, Any]) -> bool:
    names = (each.get("name", "") for each in found.get("zones") or ())
    return any(not resource_topology.is_own_entry(("zones",), name) for name in names)


def _managers(found: dict[str, Any]) -> set[str | None]:
    """Of the fields of an object."""
    return {each.get("manager") for each in found["metadata"].get("managedFields") or ()}
