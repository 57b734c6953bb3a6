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
        self.slices: set[str] = set()

    def get(self, kind: str, name: str, *, cached: bool = False) -> Object | None:
        if name in self.slices:
            return {}
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


def removal_of_driver(tmp_path: Path, claims: str) -> NodeRemoval:
    """The removal of a driver that was killed, from a kubelet that has another driver too."""
    kubelet, cdi, state = tmp_path / "kubelet", tmp_path / "cdi", tmp_path / "state"
    for path in (
        kubelet / "plugins_registry/cpu.topolet.io-a-reg.sock",
        kubelet / "plugins_registry/gpu.example.com-reg.sock",
        kubelet / "plugins/cpu.topolet.io/a.sock",
        kubelet / "plugins/cpu.topolet.io/metadata/u/cpus.json",
        kubelet / "plugins/gpu.example.com/dra.sock",
        cdi / "cpu.topolet.io-claim_u.json",
        cdi / "gpu.example.com.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    state.mkdir()
    (state / "claims.json").write_text(claims)
    settings = UninstallSettings(
        root=str(tmp_path), state_dir=str(state), kubelet_dir=str(kubelet), cdi_dir=str(cdi)
    )
    return NodeRemoval(settings, "n", None, None, lambda line: None)


def test_a_killed_driver_leaves_nothing(tmp_path: Path) -> None:
    removal = removal_of_driver(tmp_path, '{"claims": []}')
    assert removal.run(), removal.left
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        "kubelet/plugins_registry/gpu.example.com-reg.sock",
        "kubelet/plugins/gpu.example.com/dra.sock",
        "cdi/gpu.example.com.json",
    }
    assert not (tmp_path / "kubelet/plugins/cpu.topolet.io").exists()


def test_claims_of_pods_that_have_not_ended_are_listed_and_kept(tmp_path: Path) -> None:
    """The driver that is installed again lets the kubelet unprepare them."""
    claim = '{"uid": "u", "namespace": "ns", "name": "c"}'
    removal = removal_of_driver(tmp_path, f'{{"claims": [{claim}]}}')
    assert not removal.run()
    (line,) = removal.left
    assert line.startswith(
        "ResourceClaim ns/c: its pods can't end before the driver cpu.topolet.io"
    )
    assert (tmp_path / "state/claims.json").exists()


def test_all_slices_of_the_node_are_deleted(tmp_path: Path) -> None:
    server = Server(tmp_path / "store", "", {})
    names = [f"n-cpu.topolet.io-{index:02}" for index in range(3)]
    server.slices = {*names}
    settings = UninstallSettings(root=str(tmp_path), state_dir=str(tmp_path / "none"))
    assert NodeRemoval(settings, "n", server, None, lambda line: None).run()
    assert server.calls[1:] == [f"delete ResourceSlice {name}" for name in names]


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
