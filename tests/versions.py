"""Runs tests/integration/test_versions.py with each version of Kubernetes, and writes the table of
docs/compatibility.md.

    python -m tests.versions [-n] [VERSION ...]

-n: only prints the table. Without versions: all of them. A version that does not run keeps its row,
unless the versions of the runtimes have changed.
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
from tests.fixtures.cgroups import MOUNTS

RUNTIMES = {
    "containerd of this machine": "",
    "containerd 1.7": "containerd-1.7",
    "containerd 2.0": "containerd-2.0",
    "containerd 2.4": "containerd",
    "CRI-O": "cri-o",
}
"""By the name in the tests' ids, the set of tests.tools."""
_ROOT = Path(__file__).resolve().parents[1]
_PAGE = _ROOT / "docs" / "compatibility.md"
_MARK = "<!-- The rest of this page is written by `python -m tests.versions`. -->\n"
_USUAL = "1.36"
"""The version of the set "kubernetes"."""
_SUITE = "tests/integration/test_versions.py"


class Outcome(msgspec.Struct, frozen=True):
    """`reason`: of a skip or a failure, "" for a test that passed."""

    frontend: str
    runtime: str
    reason: str = ""


def outcomes(report: str) -> list[Outcome]:
    """From a report of pytest in JUnit's format."""
    listed = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        ids = re.search(r"\[(.*)\]$", case.get("name", ""))
        if ids is None:
            continue
        frontend, _, runtime = ids[1].partition("-")
        reasons = [_reason(part) for part in case if part.tag in ("skipped", "failure", "error")]
        listed.append(Outcome(frontend, runtime, "; ".join(reasons)))
    return listed


def _reason(ended: ElementTree.Element) -> str:
    """Why a test was skipped or failed."""
    message = (ended.get("message", "").strip().splitlines() or ["no message"])[0]
    text = message.removeprefix("Skipped: ").replace("|", "\\|")
    return text if ended.tag == "skipped" else f"failed: {text}"


def cell(listed: list[Outcome]) -> str:
    """The text for the frontends of one kubelet and one runtime."""
    passed = [outcome.frontend for outcome in listed if not outcome.reason]
    others = [f"{outcome.frontend}: {outcome.reason}" for outcome in listed if outcome.reason]
    return "; ".join([", ".join(passed)] * bool(passed) + others) or "not run"


def table(heads: list[str], rows: Mapping[str, str]) -> str:
    """`rows`: by the version of Kubernetes."""
    lines = (f"| kubelet | date | {' | '.join(heads)} |", "|" + "---|" * (len(heads) + 2))
    return "".join(f"{line}\n" for line in (*lines, *(rows[version] for version in sorted(rows))))


def present_rows(heads: list[str], page: str) -> dict[str, str]:
    """By version, the rows of the page's table if it has these heads."""
    rows = {".".join(row.split(".")[:2])[2:]: row for row in re.findall(r"(?m)^\| \d.*$", page)}
    return rows if table(heads, {}) in page else {}


def main() -> None:
    words = sys.argv[1:]
    versions = [word for word in words if word != "-n"] or sorted([*tools.VERSIONS, _USUAL])
    heads = [_head(runtime) for runtime in RUNTIMES]
    rows: dict[str, str] = {}
    for version in versions:
        rows[version] = _row(version)
        print(rows[version], flush=True)
        if "-n" not in words:
            text, _, written = _PAGE.read_text().partition(_MARK)
            kept = {**present_rows(heads, written), **rows}
            _PAGE.write_text(f"{text}{_MARK}\n{table(heads, kept)}")
    print(table(heads, rows), end="")


def _head(runtime: str) -> str:
    program = runtime.split()[0]
    pinned = RUNTIMES[runtime]
    return (
        f"{program} {tools.version(pinned).removeprefix('v') if pinned else containerd.version()}"
    )


def _row(version: str) -> str:
    listed = _run(version)
    program = tools.version(tools.VERSIONS.get(version, "kubernetes")).removeprefix("v")
    cgroups = "v2" if (MOUNTS / "cgroup.controllers").exists() else "v1"
    cells = [
        cell([outcome for outcome in listed if outcome.runtime == runtime]) for runtime in RUNTIMES
    ]
    when = f"{time.strftime('%Y-%m-%d')}, cgroup {cgroups}"
    return f"| {program} | {when} | {' | '.join(cells)} |"


def _run(version: str) -> list[Outcome]:
    environment = {**os.environ, "TOPOLET_KUBERNETES": "" if version == _USUAL else version}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = ["-m", "pytest", "-q", _SUITE, f"--junitxml={report}"]
        subprocess.run([sys.executable, *words], cwd=_ROOT, env=environment, check=False)
        return outcomes(report.read_text())


if __name__ == "__main__":
    main()
