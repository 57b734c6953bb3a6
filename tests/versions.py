"""Runs tests/integration/test_versions.py with each version of Kubernetes, and writes the table of
docs/compatibility.md.

    python -m tests.versions [-n] [VERSION ...]

-n: only prints the table. Without versions: all of them. A version that does not run keeps its row.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests import tools
from tests.fixtures import containerd

_ROOT = Path(__file__).resolve().parents[1]
PAGE = _ROOT / "docs" / "compatibility.md"
MARK = "<!-- The rest of this page is written by `python -m tests.versions`. -->\n"
USUAL = "1.36"
"""The version of the set "kubernetes"."""
SUITE = "tests/integration/test_versions.py"
FRONTENDS = ("proxy", "NRI plugin")


class Outcome(msgspec.Struct, frozen=True):
    """`reason`: of a skip or a failure, "" for a test that passed."""

    frontend: str
    runtime: str
    passed: bool
    reason: str = ""


def outcomes(report: str) -> list[Outcome]:
    """From a report of pytest in JUnit's format."""
    listed = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        ids = re.search(r"\[(.*)\]$", case.get("name", ""))
        if ids is None:
            continue
        frontend, _, runtime = ids[1].partition("-")
        ended = next((part for part in case if part.tag in ("skipped", "failure", "error")), None)
        if ended is None:
            listed.append(Outcome(frontend, runtime, True))
        else:
            reason = ended.get("message", "") if ended.tag == "skipped" else "failed"
            listed.append(Outcome(frontend, runtime, False, reason.removeprefix("Skipped: ")))
    return listed


def cell(listed: list[Outcome]) -> str:
    """The text for the frontends of one kubelet and one runtime."""
    passed = [outcome.frontend for outcome in listed if outcome.passed]
    others = [f"{outcome.frontend}: {outcome.reason}" for outcome in listed if not outcome.passed]
    return "; ".join([", ".join(passed)] * bool(passed) + others)


def row(version: str, date: str, cells: Mapping[str, str], runtimes: list[str]) -> str:
    """A line of the table. `cells`: by runtime."""
    texts = (cells.get(runtime, "not run") for runtime in runtimes)
    return f"| {version} | {date} | {' | '.join(texts)} |"


def main() -> None:
    words = sys.argv[1:]
    only_print = "-n" in words
    versions = [word for word in words if word != "-n"] or sorted([*tools.VERSIONS, USUAL])
    names = {
        "containerd of this machine": f"containerd {containerd.version()}",
        "containerd 1.7": _named("containerd-1.7"),
        "containerd 2.0": _named("containerd-2.0"),
        "containerd 2.4": _named("containerd"),
        "CRI-O": f"CRI-O {tools.version('cri-o').removeprefix('v')}",
    }
    text, _, _ = PAGE.read_text().partition(MARK)
    rows = _present_rows()
    for version in versions:
        listed = _run(version)
        program = tools.version(tools.VERSIONS.get(version, "kubernetes")).removeprefix("v")
        by_runtime = {
            runtime: cell([outcome for outcome in listed if outcome.runtime == runtime])
            for runtime in names
        }
        rows[version] = row(program, time.strftime("%Y-%m-%d"), by_runtime, list(names))
        print(rows[version], flush=True)
    table = [
        f"| kubelet | date | {' | '.join(names.values())} |",
        "|" + "---|" * (len(names) + 2),
        *(rows[version] for version in sorted(rows)),
    ]
    if only_print:
        print("\n".join(table))
    else:
        PAGE.write_text(f"{text}{MARK}\n" + "\n".join(table) + "\n")


def _named(name: str) -> str:
    return f"containerd {tools.version(name).removeprefix('v')}"


def _present_rows() -> dict[str, str]:
    """By version, the rows that the page has."""
    _, _, table = PAGE.read_text().partition(MARK)
    lines = [line for line in table.splitlines() if re.match(r"\| \d", line)]
    return {".".join(line[2:].split(".")[:2]): line for line in lines}


def _run(version: str) -> list[Outcome]:
    environment = {**os.environ, "TOPOLET_KUBERNETES": "" if version == USUAL else version}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = ["-m", "pytest", "-q", SUITE, f"--junitxml={report}"]
        subprocess.run([sys.executable, *words], cwd=_ROOT, env=environment, check=False)
        return outcomes(report.read_text())


if __name__ == "__main__":
    main()
