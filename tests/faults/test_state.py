"""Torn or missing files of the state folder at the agent's start."""

import shutil

import pytest

from tests.faults.conftest import Around

ALL = "0-15"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_no_owner_loses_its_cpus_by_a_torn_snapshot(around: Around, share: float) -> None:
    """Not even to an older pod that claims them too: the cgroups show which pod owns them."""
    rival = around.node.add("LSE")
    own, ls = around.running("LSE", "1-2"), around.running("LS")
    around.start()
    assert (around.cpus(own), around.cpus(ls)) == ("1-2", "0,3-15")
    around.launcher.kill()
    rival.claim = "2"
    around.node.changed(rival)
    snapshot = around.node.state / "snapshot.json"
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[: int(len(whole) * share)])
    around.start()
    assert (around.cpus(own), around.cpus(ls)) == ("1-2", "0,3-15")
    published = around.node.snapshot()
    assert published is not None
    assert [each.cpuset for each in published.owners] == ["1-2"]
    assert "belong to pod" in published.pods[rival.uid].refused


def test_torn_journal_keeps_its_whole_lines_for_the_restore(around: Around) -> None:
    groups = [around.running("LSE", "1-2"), around.running("LS"), around.running("BE")]
    around.start()
    around.launcher.kill()
    journal = around.node.state / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    around.start()
    assert [around.cpus(each) for each in groups] == ["1-2", "0,3-15", "0,3-15"]
    assert (around.node.state / "journal.broken").read_bytes() == whole[:-20]
    assert "lines unreadable" in around.launcher.log()
    around.restore()
    assert [around.cpus(each) for each in groups] == [ALL, ALL, ALL]


def test_removed_state_folder_loses_no_cpuset_and_no_restore(around: Around) -> None:
    own, ls = around.running("LSE", "1-2"), around.running("LS")
    around.start()
    around.launcher.kill()
    shutil.rmtree(around.node.state)
    around.start()
    assert (around.cpus(own), around.cpus(ls)) == ("1-2", "0,3-15")
    around.restore()
    assert (around.cpus(own), around.cpus(ls)) == (ALL, ALL)
