"""Log records of a lasting condition: one per change, or at most one per period."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from agent.host.log_once import CountedWarnings, Problem, about

log = logging.getLogger(__name__)


def test_a_problem_is_logged_when_its_text_changes(caplog: pytest.LogCaptureFixture) -> None:
    problem = Problem(log, "watch of pods: ", logging.ERROR)
    for text in ("refused", "refused", "late", "refused"):
        problem.report(text)
    assert [(each.levelno, each.message) for each in caplog.records] == [
        (logging.ERROR, "watch of pods: refused"),
        (logging.ERROR, "watch of pods: late"),
        (logging.ERROR, "watch of pods: refused"),
    ]
    assert problem.text == "refused"


def test_a_problem_that_returns_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    problem = Problem(log, "")
    assert not problem.clear()
    problem.report("100% lost")
    assert problem.clear()
    assert problem.text is None
    problem.report("100% lost")
    problem.report("100% lost", again=True)
    assert caplog.messages == ["100% lost"] * 3


def test_warnings_of_one_key_are_counted_and_logged_once_in_a_period(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    warnings = CountedWarnings(log, 60.0, lambda: now)
    counts: Counter[tuple[str, ...]] = Counter()
    for key, text in ((("a",), "first"), (("a",), "second"), (("b",), "other")):
        warnings.add(counts, key, text)
    now += 60.0
    warnings.add(counts, ("a",), "third", about("ns/web"))
    assert counts == {("a",): 3, ("b",): 1}
    assert caplog.messages == ["first", "other", "third"]
    assert vars(caplog.records[-1])["pod"] == "web"
