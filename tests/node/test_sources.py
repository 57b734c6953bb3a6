from __future__ import annotations

import logging

import pytest

from agent.node.sources import SourceName, Sources


def test_each_failure_is_logged_once_and_counted_until_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    counted: list[tuple[str, int]] = []
    sources = Sources(lambda name, number: counted.append((name, number)))
    for problems in ((), ("a",), ("a",), ("a", "b"), ("b",), (), (), ("a",)):
        sources.report(SourceName.JOURNAL, problems)
    assert caplog.messages == [
        "journal: a",
        "journal: b",
        "journal: can be used again",
        "journal: a",
    ]
    assert counted == [("journal", number) for number in (0, 1, 2, 1, 0, 1)]


def test_failures_of_two_sources_are_separate(caplog: pytest.LogCaptureFixture) -> None:
    sources = Sources()
    sources.report(SourceName.UEVENTS, ("a",))
    sources.report(SourceName.DEVICES, ("a",))
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]
    sources.report(SourceName.DEVICES, ("b",), logging.ERROR)
    assert [each.levelname for each in caplog.records][2:] == ["ERROR"]


def test_problems_have_paths_of_the_host() -> None:
    sources = Sources(root="/host/")
    sources.report(
        SourceName.DEVICE_CHECKPOINT,
        ["/host/var/lib/kubelet/x: bad", "'/host/sys' and /hosts/a, /a/host/b are"],
    )
    assert sources.problems[SourceName.DEVICE_CHECKPOINT] == (
        "'/sys' and /hosts/a, /a/host/b are",
        "/var/lib/kubelet/x: bad",
    )
