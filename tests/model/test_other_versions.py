"""Files of the state folder that an older or a newer version has written."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from agent.cgroup.journal import Journal, Original, OriginalValue
from agent.model import snapshot
from agent.model.pod.qos import QoS
from agent.model.snapshot import PodWanted, Pool, Snapshot, SnapshotError, Wanted

NOW = Snapshot(
    5,
    7,
    "boot",
    False,
    (Pool(0, 0, "0-3"),),
    (),
    (),
    {"u": PodWanted("ns/p", QoS.LS, Wanted("0-3"))},
    {"c": Wanted("1")},
)
TEXT = json.loads(snapshot.encode(NOW))


def test_fields_of_a_newer_version_are_ignored() -> None:
    newer = {**TEXT, "later": [1], "pods": {"u": {**TEXT["pods"]["u"], "later": {}}}}
    assert snapshot.decode(json.dumps(newer).encode()) == NOW


@pytest.mark.parametrize("field", sorted(TEXT))
def test_a_snapshot_of_another_version_is_read_or_refused(field: str) -> None:
    """Without a field of this version, or with one of another type."""
    without = {name: value for name, value in TEXT.items() if name != field}
    for other in (without, {**TEXT, field: {"later": 1}}, {**TEXT, field: "later"}):
        with contextlib.suppress(SnapshotError):
            assert snapshot.decode(json.dumps(other).encode()).boot_id in ("boot", "later")


def test_a_journal_of_another_version_keeps_every_line_that_it_can_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = [
        {"group": "/kubepods/a", "cpus": "0-3"},
        {"group": "/kubepods/b", "cpus": "4-7", "note": None, "later": 1},
        {"group": "/kubepods/b", "file": "cpu.max", "value": "max 100000", "later": 1},
        {"later": {"group": "/kubepods/c"}},
        {"group": "/kubepods/d", "cpus": ["0-3"]},
    ]
    text = "".join(json.dumps(each) + "\n" for each in lines) + '{"group": "/kubepods/e", "cp'
    path.write_text(text)
    journal = Journal(path)
    assert journal.originals == {
        "/kubepods/a": Original("/kubepods/a", "0-3"),
        "/kubepods/b": Original("/kubepods/b", "4-7"),
    }
    value = OriginalValue("/kubepods/b", "cpu.max", "max 100000")
    assert journal.values == {("/kubepods/b", "cpu.max"): value}
    assert (tmp_path / "journal.broken").read_text() == text
    assert journal.problems
    assert Journal(path).problems == ()
