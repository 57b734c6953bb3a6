"""Objects that are deleted, and objects that lose only Topolet's fields; tests/integration has a
real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.host.locks import Lock
from agent.install.proxy import ProxyInstallation
from agent.install.uninstall import NodeRemoval
from agent.kube.objects import Object
from agent.kube.store import EmbeddedStore
from agent.model.settings.agent import UninstallSettings
from agent.usage import OFFERED_FILE, STRATEGIES_FILE, WAITS_FILE, predictor

OWN_FIELDS, FIELDS_OF_OTHERS = {"manager": "topolet"}, {"manager": "nfd-topology-updater"}
TOPOLOGY = "NodeResourceTopology"


class Server(EmbeddedStore):
    """An API server that has one object."""

    def __init__(self, folder: Path, kind: str, found: Object) -> None:
        super().__init__(str(folder))
        self._kind = kind
        self._object = found
        self.calls: list[Any] = []

    def get(self, kind: str, name: str, *, cached: bool = False) -> Object | None:
        return self._object if kind == self._kind else None

    def apply(self, wanted: Object) -> bool:
        self.calls.append({name: each for name, each in wanted.items() if name != "apiVersion"})
        return True

    def apply_status(self, wanted: Object) -> bool:
        return True

    def delete(self, kind: str, name: str) -> bool:
        self.calls.append(f"delete {kind} {name}")
        return True


def removed(
    tmp_path: Path, kind: str, *managers: object, **fields: Any
) -> tuple[list[Any], list[str]]:
    """The calls that change the object, and what is left."""
    found = {"apiVersion": "g/v1", "metadata": {"managedFields": list(managers)}, **fields}
    server = Server(tmp_path / "store", kind, found)
    settings = UninstallSettings(root=str(tmp_path), state_dir=str(tmp_path / "none"))
    (tmp_path / "run").mkdir()
    removal = NodeRemoval(
        settings, "n", server, ProxyInstallation(settings, lambda line: None), lambda line: None
    )
    removal.run()
    return server.calls[1:], removal.left


@pytest.mark.parametrize("kind", [TOPOLOGY, "Device"])
def test_an_object_that_only_topolet_wrote_is_deleted(tmp_path: Path, kind: str) -> None:
    assert removed(tmp_path, kind, OWN_FIELDS, OWN_FIELDS) == ([f"delete {kind} n"], [])


@pytest.mark.parametrize("kind", [TOPOLOGY, "Device"])
def test_an_object_of_others_stays(tmp_path: Path, kind: str) -> None:
    assert removed(tmp_path, kind, FIELDS_OF_OTHERS) == ([], [])


def test_a_shared_topology_keeps_the_zones_of_others(tmp_path: Path) -> None:
    zones = [{"name": "node-0"}, {"name": "example"}]
    wanted = {"kind": TOPOLOGY, "metadata": {"name": "n"}, "zones": []}
    assert removed(tmp_path, TOPOLOGY, OWN_FIELDS, FIELDS_OF_OTHERS, zones=zones) == ([wanted], [])


def test_a_shared_topology_without_zones_of_others_is_reported(tmp_path: Path) -> None:
    calls, left = removed(
        tmp_path, TOPOLOGY, OWN_FIELDS, FIELDS_OF_OTHERS, zones=[{"name": "node-0"}]
    )
    assert calls == []
    (line,) = left
    assert line.startswith("NodeResourceTopology: others wrote in it")


def test_a_shared_device_keeps_the_devices_of_others(tmp_path: Path) -> None:
    wanted = {"kind": "Device", "metadata": {"name": "n"}, "spec": {"devices": []}}
    assert removed(tmp_path, "Device", OWN_FIELDS, FIELDS_OF_OTHERS, spec={"devices": []}) == (
        [wanted],
        [],
    )


def test_no_file_of_the_use_of_cpu_and_memory_stays(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    for name in (OFFERED_FILE, STRATEGIES_FILE, WAITS_FILE, predictor.FILE):
        (state / name).write_text("{}")
    settings = UninstallSettings(root=str(tmp_path), state_dir=str(state))
    (tmp_path / "run").mkdir()
    installation = ProxyInstallation(settings, lambda line: None)
    removal = NodeRemoval(settings, "n", None, installation, lambda line: None)
    assert removal.run(), removal.left
    assert not state.exists()


def test_a_node_keeps_its_labels_while_its_cgroups_are_not_restored(tmp_path: Path) -> None:
    """The labels show the node to the next removal of the release."""
    state = tmp_path / "state"
    state.mkdir()
    lock = Lock(str(state / "agent.lock"))
    server = Server(tmp_path / "store", "Device", {"metadata": {"managedFields": []}})
    settings = UninstallSettings(root=str(tmp_path), state_dir=str(state))
    removal = NodeRemoval(settings, "n", server, None, lambda line: None)
    assert not removal.run()
    assert [each.split(":")[0] for each in removal.left][:2] == ["cgroups", "labels of the Node"]
    assert server.calls == []
    lock.release()
