"""Known vulnerabilities of the installed dependencies, by pip-audit: `python -m tests.audit`.

The exit code is 1 if there is one that is not in IGNORED. If no source of vulnerabilities can be
reached, this is printed, and the exit code is 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from deploy import release

IGNORED: Final = frozenset(each["vulnerability"] for each in release.exploitability())
"""Vulnerabilities with a reason in deploy/image/vex.json, by id."""


def outcome(report: dict[str, Any]) -> tuple[list[str], str]:
    """The vulnerabilities that count, and a remark. `report`: pip-audit's JSON."""
    audited = [each for each in report["dependencies"] if "skip_reason" not in each]
    if not audited:
        return [], "skipped: no source of vulnerabilities knows any of the packages"
    vulnerabilities = [
        f"{each['name']} {each['version']}: {found['id']}: {found.get('description', '')[:200]}"
        for each in audited
        for found in each["vulns"]
        if IGNORED.isdisjoint((found["id"], *found.get("aliases", ())))
    ]
    return (
        vulnerabilities,
        f"{len(audited)} packages audited, {len(vulnerabilities)} vulnerabilities",
    )


def main() -> int:
    words = ["--skip-editable", "--progress-spinner=off", "--format=json", "--timeout=15"]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *words], capture_output=True, text=True
    )
    try:
        vulnerabilities, remark = outcome(json.loads(done.stdout))
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        vulnerabilities, remark = (
            [],
            f"skipped: no source of vulnerabilities can be reached: {reason[:300]}",
        )
    for each in vulnerabilities:
        print(each)
    print(f"audit: {remark}")
    return int(bool(vulnerabilities))


if __name__ == "__main__":
    sys.exit(main())
