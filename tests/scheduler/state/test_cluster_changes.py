from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.scheduler.state.cluster import ChangedNodes, ChangeLog


@given(names=st.lists(st.sampled_from("abcdef"), max_size=30), serial=st.integers(0, 30))
def test_the_log_has_every_change_after_a_serial(names: list[str], serial: int) -> None:
    log = ChangeLog()
    for name in names:
        log.add(name)
    assert log.since(serial) == ChangedNodes(len(names), frozenset(names[serial:]))


@given(names=st.lists(st.sampled_from("abcdef"), max_size=30), serial=st.integers(0, 30))
def test_dropped_changes_count_as_all_nodes(names: list[str], serial: int) -> None:
    log = ChangeLog(max_names=3)
    for name in names:
        log.add(name)
    changes = log.since(serial)
    if changes.names is None:
        assert len(set(names[serial:])) > 3
    else:
        assert changes.names == set(names[serial:])


def test_the_log_has_one_entry_for_each_name() -> None:
    log = ChangeLog()
    for number in range(1000):
        log.add(f"n{number % 5}")
    assert log.since(0).names == {f"n{number}" for number in range(5)}
