from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from agent.kube.objects import Change, ObjectKey
from agent.kube.store import EmbeddedStore, FolderWatch
from tests.kube.reading import as_type
from tests.waiting import eventually


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
