"""What the last soak has measured, from the document that it has left: `make soak` is an hour of
pods that come and go on a whole cluster while things go wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import Row, arguments, report, value_row

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "var" / "soak" / "report.json"
_COUNTS: Final = ("failed_pods", "rejected_pods", "overlaps", "drift", "creations")


def rows(document: Mapping[str, Any]) -> Iterator[Row]:
    yield value_row("minutes", document["seconds"] / 60, "min")
    for name in ("pods", "faults"):
        yield value_row(name, sum(document[name].values()), "count")
    for name in _COUNTS:
        yield value_row(name, document[name], "count")
    if document["p99_ratio"] is not None:
        yield value_row("p99_ratio", document["p99_ratio"], "times")
    for process, slope in document["slopes"].items():
        yield {
            "case": process,
            "unit": "KB/h",
            "value": slope["kb_per_hour"],
            "error": slope["error"],
            "minutes": slope["seconds"] / 60,
            "processes": document["processes"][process],
            "files": document["leaked_fds"][process],
            "threads": document["leaked_threads"][process],
        }


def main() -> None:
    options = arguments(__doc__)
    if DOCUMENT.exists():
        report(list(rows(json.loads(DOCUMENT.read_text()))), options.output)
    else:
        reason = "no soak has run here: `make soak` takes an hour"
        report([{"case": "minutes", "unit": "min", "skipped": reason}], options.output)


if __name__ == "__main__":
    main()
