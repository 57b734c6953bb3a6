"""`python -m tests.alone ARGUMENTS`: runs pytest with these arguments, then repeats each failed
test with real programs alone.

With three workers on two CPUs a server may miss any deadline. The run fails if a repeated test
fails. A repeated test that passes is listed as unstable, so that it gets fixed. Tests without
programs are not repeated, and nothing is repeated after more than MAX_FAILURES failures.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

MAX_FAILURES = 4
SUITES = (
    "tests/cgroup/",
    "tests/cluster/",
    "tests/critest/",
    "tests/demo/",
    "tests/faults/",
    "tests/integration/",
    "tests/relay/",
    "tests/vm/",
)
"""Suites whose tests start programs or share the machine's cgroups."""

_OPTION = "--failures-to"
_ALONE = ("-n", "0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, metavar="FILE", help="write the ids of tests that failed, one a line")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if file := terminalreporter.config.getoption("failures_to"):
        stats = terminalreporter.stats
        reports = [*stats.get("failed", ()), *stats.get("error", ())]
        ids = dict.fromkeys(str(each.nodeid) for each in reports)
        Path(file).write_text("".join(f"{each}\n" for each in ids))


def are_repeatable(failed: Sequence[str]) -> bool:
    """Whether the failed tests, by their ids, are few and all of SUITES."""
    return 0 < len(failed) <= MAX_FAILURES and all(
        "::" in each and each.startswith(SUITES) for each in failed
    )


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "failures"
        code = _pytest(*arguments, f"{_OPTION}={file}")
        failed = file.read_text().splitlines() if file.exists() else []
    if code != pytest.ExitCode.TESTS_FAILED or not are_repeatable(failed):
        return code
    print(f"\nRepeated alone: {', '.join(failed)}", flush=True)
    if again := _pytest(*_ALONE, *failed):
        return again
    for each in failed:
        print(f"UNSTABLE {each}: failed with other tests, passed alone")
    return 0


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
