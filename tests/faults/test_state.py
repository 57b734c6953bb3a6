"""Torn or missing files of the state folder when the agent starts."""

import shutil

import pytest

from tests.faults.conftest import AgentHarness

ALL = "0-15"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_no_owner_loses_its_cpus_by_a_torn_snapshot(harness: AgentHarness, share: float) -> None:
    """The cgroups show the owner, although an older pod claims a CPU too."""
    rival = harness.node.add_pod("LSE")
    own, ls = harness.run_container("LSE", "1-2"), harness.run_container("LS")
    harness.start()
    assert (harness.cpus(own), harness.cpus(ls)) == ("1-2", "0,3-15")
    harness.launcher.kill()
    rival.claim = "2"
    harness.node.update_sandbox(rival)
    snapshot = harness.node.state / "snapshot.json"
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[: int(len(whole) * share)])
    harness.start()
    assert (harness.cpus(own), harness.cpus(ls)) == ("1-2", "0,3-15")
    published = harness.node.snapshot()
    assert published is not None
    assert [each.cpuset for each in published.owners] == ["1-2"]
    assert "belong to pod" in published.pods[rival.uid].refused


def test_torn_journal_keeps_its_whole_lines_for_the_restore(harness: AgentHarness) -> None:
    groups = [
        harness.run_container("LSE", "1-2"),
        harness.run_container("LS"),
        harness.run_container("BE"),
    ]
    harness.start()
    harness.launcher.kill()
    journal = harness.node.state / "journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    harness.start()
    assert [harness.cpus(each) for each in groups] == ["1-2", "0,3-15", "0,3-15"]
    assert (harness.node.state / "journal.broken").read_bytes() == whole[:-20]
    assert "lines unreadable" in harness.launcher.log()
    harness.restore()
    assert [harness.cpus(each) for each in groups] == [ALL, ALL, ALL]


def test_removed_state_folder_loses_no_cpuset_and_no_restore(harness: AgentHarness) -> None:
    own, ls = harness.run_container("LSE", "1-2"), harness.run_container("LS")
    harness.start()
    harness.launcher.kill()
    shutil.rmtree(harness.node.state)
    harness.start()
    assert (harness.cpus(own), harness.cpus(ls)) == ("1-2", "0,3-15")
    harness.restore()
    assert (harness.cpus(own), harness.cpus(ls)) == (ALL, ALL)
