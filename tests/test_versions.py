"""The table of kubelets and runtimes has the results of the tests that ran."""

from __future__ import annotations

from tests.versions import Outcome, cell, outcomes, present_rows, table

REPORT = """<testsuites><testsuite>
<testcase name="test_pods[proxy-CRI-O]"><properties/><system-out>log</system-out></testcase>
<testcase name="test_pods[NRI plugin-CRI-O]"><skipped message="Skipped: no conmon here"/></testcase>
<testcase name="test_pods[proxy-containerd 1.7]">
  <failure message="AssertionError: not within 90 s: a | b&#10;more">text</failure>
</testcase>
<testcase name="test_pods[NRI plugin-containerd 1.7]"/>
</testsuite></testsuites>"""
ROW = "| 1.36.3 | 2026-12-01, cgroup v1 | proxy | proxy, NRI plugin |"
HEADS = ["containerd 1.7.35", "CRI-O 1.34.0"]


def test_a_cell_tells_a_skip_and_a_failure_by_its_reason() -> None:
    crio, containerd = outcomes(REPORT)[:2], outcomes(REPORT)[2:]
    assert {outcome.runtime for outcome in crio} == {"CRI-O"}
    assert cell(crio) == "proxy; NRI plugin: no conmon here"
    assert cell(containerd) == (
        "NRI plugin; proxy: failed: AssertionError: not within 90 s: a \\| b"
    )
    assert cell([]) == "not run"
    assert cell([Outcome(each, "CRI-O") for each in ("proxy", "NRI plugin")]) == "proxy, NRI plugin"


def test_a_version_that_does_not_run_keeps_its_row() -> None:
    page = table(HEADS, {"1.36": ROW})
    assert present_rows(HEADS, page) == {"1.36": ROW}
    assert table(HEADS, present_rows(HEADS, page)) == page


def test_rows_of_other_runtimes_are_dropped() -> None:
    page = table(HEADS, {"1.36": ROW})
    assert present_rows(["containerd 1.7.36", "CRI-O 1.34.0"], page) == {}
