from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.kube.errors import StoreError
from agent.kube.objects import Change, ObjectKey
from agent.kube.store import EmbeddedStore, FolderWatch
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.nrt.node_status import LABEL_PREFIX
from tests.kube.reading import as_type
from tests.waiting import eventually


def node(name: str = "n", **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def test_object_is_stored_as_readable_yaml(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path))
    wanted = node(boolean="yes", number="1", empty="", text='{"a": [1]}', many="x " * 200)
    assert store.get("Node", "n") is None
    assert store.apply(wanted) is True
    assert store.get("Node", "n") == wanted
    text = (tmp_path / "node" / "n.yaml").read_text()
    assert text.startswith("apiVersion: v1\nkind: Node\nmetadata:\n  name: n\n")
    assert yaml.safe_load(text) == wanted


def test_unchanged_object_is_not_written_again(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path))
    store.apply(node(a="1"))
    before = os.stat(tmp_path / "node" / "n.yaml")
    assert store.apply(node(a="1")) is False
    assert EmbeddedStore(str(tmp_path)).apply(node(a="1")) is False
    assert os.stat(tmp_path / "node" / "n.yaml").st_ino == before.st_ino
    assert store.apply(node(a="2")) is True


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"- a list",
        b"a: [1",
        b"\x00\xff",
        b"when: 2001-99-99",
        b"number: 0x_",
        b'number: !!int ""',
        b"? [a]\n: b",
        b"[" * 2_000,
        b"!!python/object/apply:os.system [echo]",
    ],
)
@pytest.mark.parametrize("kind", ["Node", "Device"])
def test_invalid_file_is_an_error_and_replaced_if_only_the_agent_writes_it(
    tmp_path: Path, content: bytes, kind: str
) -> None:
    store = EmbeddedStore(str(tmp_path))
    path = tmp_path / kind.lower() / "n.yaml"
    path.parent.mkdir()
    path.write_bytes(content)
    wanted = {**node(), "kind": kind}
    with pytest.raises(StoreError, match=f"{kind} n in {path}"):
        store.get(kind, "n")
    if kind == "Node":
        with pytest.raises(StoreError, match=f"Node n in {path}"):
            store.apply(wanted)
        assert path.read_bytes() == content
    else:
        assert store.apply(wanted) is True
        assert store.get(kind, "n") == wanted


def test_fields_of_a_node_from_other_writers_are_kept(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path))
    stored = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n",
            "labels": {"zone": "a", f"{LABEL_PREFIX}old": "1"},
            "annotations": {"stored": "kept"},
        },
        "spec": {"unschedulable": True},
    }
    store.apply(stored)
    assert store.apply(node(**{f"{LABEL_PREFIX}new": "2"})) is True
    assert store.get("Node", "n") == {
        **stored,
        "metadata": {
            "name": "n",
            "labels": {"zone": "a", f"{LABEL_PREFIX}new": "2"},
            "annotations": {"stored": "kept"},
        },
    }
    assert store.apply(node(**{f"{LABEL_PREFIX}new": "2"})) is False


def test_object_that_only_the_agent_writes_is_replaced_as_a_whole(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path))
    store.apply({**node(a="1"), "kind": "Device"})
    store.apply({**node(b="1"), "kind": "Device"})
    assert store.get("Device", "n") == {**node(b="1"), "kind": "Device"}


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "../up", "a/b", "/etc/passwd", "a\0b"])
def test_invalid_object_name_is_refused(tmp_path: Path, name: str) -> None:
    store = EmbeddedStore(str(tmp_path / "store"))
    with pytest.raises(StoreError, match="is not an object name"):
        store.apply(node(name))
    with pytest.raises(StoreError, match="is not an object name"):
        store.get("Node", name)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_names_the_object(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Node n in .*Not a directory"):
        EmbeddedStore(str(tmp_path / "file")).apply(node())
    with pytest.raises(StoreError, match="File name too long"):
        EmbeddedStore(str(tmp_path)).apply(node("n" * 300))


def test_devices_of_other_types_are_kept(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path))
    assert store.apply(device_object.encode("n", [Device("rdma", "a", 0, {})]))
    path = tmp_path / "device" / "n.yaml"
    body = yaml.safe_load(path.read_text())
    body["spec"]["devices"].append({"type": "xpu", "id": "x", "minor": 0, "health": True})
    path.write_text(yaml.safe_dump(body))
    assert not store.apply(device_object.encode("n", [Device("rdma", "a", 0, {})]))
    assert store.apply(device_object.encode("n", [Device("rdma", "b", 0, {})]))
    kept = store.get("Device", "n")
    assert kept is not None
    assert [each["id"] for each in kept["spec"]["devices"]] == ["b", "x"]


class Item(msgspec.Struct):
    metadata: dict[str, Any]


def pod(folder: Path, namespace: str, name: str, node: str, **labels: str) -> Path:
    path = folder / "pod" / namespace / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    path.write_text(yaml.safe_dump({"metadata": metadata, "spec": {"nodeName": node}}))
    return path


def test_pods_of_one_node_are_followed(tmp_path: Path) -> None:
    reported: list[tuple[str, ObjectKey]] = []

    def changed(changes: Sequence[Change[Item]]) -> None:
        reported.extend((each.kind.value, each.key) for each in changes)

    pod(tmp_path, "a", "p", "n")
    pod(tmp_path, "b", "p", "n")
    pod(tmp_path, "b", "elsewhere", "m")
    store = EmbeddedStore(str(tmp_path), period_seconds=0.01)
    watch = store.watch_pods("n", as_type(Item), changed)
    watch.start()
    try:
        eventually("synced", lambda: watch.synced)
        assert set(watch.objects()) == {ObjectKey("a", "p"), ObjectKey("b", "p")}
        path = pod(tmp_path, "a", "p", "n", changed="yes")
        eventually("reported", lambda: len(reported) == 3)
        path.write_text("{")
        eventually("the failure is reported", lambda: "Pod a/p" in (watch.problem or ""))
        assert len(watch.objects()) == 2, "the last valid object is kept"
        path.unlink()
        eventually("reported", lambda: len(reported) == 4)
        assert watch.problem is None
    finally:
        watch.stop()
    assert sorted(reported[:2]) == [("added", ObjectKey("a", "p")), ("added", ObjectKey("b", "p"))]
    assert reported[2:] == [("modified", ObjectKey("a", "p")), ("deleted", ObjectKey("a", "p"))]
    pod(tmp_path, "a", "later", "n")
    assert len(reported) == 4


def test_node_is_followed(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path), period_seconds=0.01)
    changes: list[Change[Item]] = []
    watch: FolderWatch[Item] = store.watch_node("n", as_type(Item), changes.extend)
    watch.start()
    try:
        eventually("synced", lambda: watch.synced)
        assert watch.objects() == {}
        store.apply({"kind": "Node", "metadata": {"name": "n"}})
        eventually("added", lambda: len(changes) == 1)
        assert store.delete("Node", "n") is True
        assert store.delete("Node", "n") is False
        eventually("deleted", lambda: len(changes) == 2)
    finally:
        watch.stop()
