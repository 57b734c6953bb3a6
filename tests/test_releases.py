"""Compatibility with other versions: this version reads the data of each release, and ignores
fields that a later version may add."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.cgroup.journal import Journal
from agent.install import journal as install_journal
from agent.install.tree import HostTree
from agent.model import snapshot
from agent.model.devices import device_object
from agent.model.nrt import resource_topology
from agent.model.pod.annotations import resource_status
from tests import releases

RELEASES = sorted(each for each in releases.FOLDER.iterdir() if each.is_dir())
EACH = pytest.mark.parametrize("release", RELEASES, ids=[each.name for each in RELEASES])
NEW_FIELD = "later-field"


def with_new_fields(value: Any) -> Any:
    """The value with one more field in each object with fixed fields."""
    if isinstance(value, list):
        return [with_new_fields(each) for each in value]
    if not isinstance(value, dict):
        return value
    more = {name: with_new_fields(each) for name, each in value.items()}
    return more if _is_map(value) else {**more, NEW_FIELD: {"a": [1]}}


def _is_map(value: dict[str, Any]) -> bool:
    """Whether the names are not fields: pods by uid, containers by id, resources, annotations."""
    known = ("c0ffee", "decade", "cpu")
    return any("-" in name or "/" in name or name in known for name in value)


def read(folder: Path, name: str, *, later: bool) -> bytes:
    content = (folder / name).read_bytes()
    return json.dumps(with_new_fields(json.loads(content))).encode() if later else content


@EACH
@pytest.mark.parametrize("later", [False, True], ids=["itself", "with later fields"])
class TestRelease:
    def test_the_snapshot(self, release: Path, later: bool) -> None:
        """An agent and its frontends of different versions."""
        assert snapshot.decode(read(release, "snapshot.json", later=later)) == releases.SNAPSHOT

    def test_the_journal_of_cgroups(self, release: Path, later: bool, tmp_path: Path) -> None:
        """A restore of values that another version journalled."""
        lines = (release / "journal").read_text().splitlines()
        text = [
            json.dumps(with_new_fields(json.loads(each)) if later else json.loads(each))
            for each in lines
        ]
        (tmp_path / "journal").write_text("".join(f"{each}\n" for each in text))
        journal = Journal(tmp_path / "journal")
        assert journal.problems == ()
        assert tuple(journal.originals.values()) == releases.ORIGINALS
        assert tuple(journal.values.values()) == releases.VALUES

    def test_the_journal_of_the_installation(
        self, release: Path, later: bool, tmp_path: Path
    ) -> None:
        """An upgrade, or a removal, of a proxy that another version installed."""
        path = tmp_path / install_journal.PATH.lstrip("/")
        path.parent.mkdir(parents=True)
        path.write_bytes(read(release, "install.json", later=later))
        assert install_journal.read(HostTree(str(tmp_path))) == releases.INSTALLED

    def test_the_topology(self, release: Path, later: bool) -> None:
        """A scheduler with an agent of another version."""
        body = json.loads(read(release, "noderesourcetopology.json", later=later))
        found = resource_topology.decode(body)
        assert found.zones == releases.REPORT.topology.zones
        assert found.annotations == releases.REPORT.topology.annotations
        assert found.faults == ()

    def test_the_devices(self, release: Path, later: bool) -> None:
        body = json.loads(read(release, "device.json", later=later))
        assert device_object.decode(body) == releases.DEVICES

    def test_the_annotations_of_a_pod(self, release: Path, later: bool) -> None:
        """An agent with a scheduler of another version."""
        texts = json.loads((release / "pod-annotations.json").read_text())
        if later:
            texts = {
                key: json.dumps(with_new_fields(json.loads(text))) for key, text in texts.items()
            }
        status = resource_status(texts)
        assert status is not None
        assert str(status.cpus()) == "0-1"
        assert status.amounts() == {0: {"cpu": 2000}}


def test_this_version_reads_its_own_files(tmp_path: Path) -> None:
    for name, content in releases.written().items():
        (tmp_path / name).write_bytes(content)
    kinds = TestRelease()
    kinds.test_the_snapshot(tmp_path, False)
    kinds.test_the_topology(tmp_path, False)
    kinds.test_the_devices(tmp_path, False)


def test_a_release_is_not_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(releases, "FOLDER", tmp_path)
    assert releases.main() == 0
    (made,) = tmp_path.iterdir()
    assert sorted(each.name for each in made.iterdir()) == sorted(releases.written())
    (made / "snapshot.json").write_text("x")
    assert releases.main() == 1
    assert (made / "snapshot.json").read_text() == "x"
    shutil.rmtree(made)
