"""Known holes of the installed dependencies, by pip-audit: `python -m tests.audit`.

Exit code 1 if there is one that is not in IGNORED. Where no source of vulnerabilities can be
reached, it says so and succeeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

IGNORED: Final[dict[str, str]] = {}
"""The reason of each ignored vulnerability, by id."""


def outcome(report: dict[str, Any]) -> tuple[list[str], str]:
    """The holes that count, and a remark. `report`: pip-audit's JSON."""
    audited = [each for each in report["dependencies"] if "skip_reason" not in each]
    if not audited:
        return [], "skipped: no source of vulnerabilities knows any of the packages"
    holes = [
        f"{each['name']} {each['version']}: {hole['id']}: {hole.get('description', '')[:200]}"
        for each in audited
        for hole in each["vulns"]
        if IGNORED.keys().isdisjoint((hole["id"], *hole.get("aliases", ())))
    ]
    return holes, f"{len(audited)} packages audited, {len(holes)} holes"


def main() -> int:
    words = ["--skip-editable", "--progress-spinner=off", "--format=json", "--timeout=15"]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *words], capture_output=True, text=True
    )
    try:
        holes, remark = outcome(json.loads(done.stdout))
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        holes, remark = [], f"skipped: no source of vulnerabilities can be reached: {reason[:300]}"
    for each in holes:
        print(each)
    print(f"audit: {remark}")
    return int(bool(holes))


if __name__ == "__main__":
    sys.exit(main())
