"""Keeps the figures of the documents equal to what the benchmarks have measured.

    python -m benchmarks.figures [NAME...]  runs these benchmarks, or all, and writes documents
    python -m benchmarks.figures --render   only writes documents

docs/figures.json has the rows of each benchmark that a document quotes, with machine, date, commit
and command. benchmarks/figures.md has the text: a block between `<!-- figures: NAME -->` and
`<!-- end -->` stands in one document between the same lines, where its figures are filled in. A
figure is `{BENCHMARK:CASE}`, `{BENCHMARK:CASE:FIELD}` with another field of the row than its value,
or `{BENCHMARK:CASE:row}` for value, base and ratio as three cells. Bytes and times have their unit;
a part is shown in percent after `!%`, without its unit after `!n`, and less by 1 after `!-1`. A
line `for A,B; C,D: TEXT` stands for TEXT with A and B, and with C and D, in place of $1 and $2.

A benchmark that fails, or does not measure all that is quoted, leaves its figures as they are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import re
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[1]
STORE: Final = ROOT / "docs" / "figures.json"
TEXTS: Final = Path(__file__).with_suffix(".md")
DOCUMENTS: Final = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
WORDS: Final = {
    "colocation": ("--turns", "2"),
    "newcomers": ("--command", "make run SECONDS=20"),
    "quiet": ("--turns", "2"),
}
"""The arguments of a benchmark."""
RUNS: Final = "runs"
"""The block with a row for each benchmark."""
COLUMNS: Final = 120

_BLOCK: Final = re.compile(r"<!-- figures: ([\w-]+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
_REPEATED: Final = re.compile(r"^for (.*?): (.*\n)", re.MULTILINE)
_FIGURE: Final = re.compile(r"\{(\w+):([^:{}!]+)(?::(\w+))?(?:!([^{}]+))?\}")
_SECONDS: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_STORED_DIGITS, _SHOWN_DIGITS = 6, 3
"""Significant digits; of more stored ones, so that a figure is not rounded twice."""

Number = float | list[float]
"""A figure, or the lowest and the highest of several runs."""


class MissingFigureError(Exception):
    """A text quotes what the benchmark did not measure. The message says why."""


class BenchmarkRun(msgspec.Struct, omit_defaults=True):
    """What the documents quote of a run.

    `commit`: the commit that was measured, with a plus sign if the code had changes.
    `note`: a circumstance that the reader needs.
    `rows`: the fields of each row, by its case."""

    command: str
    machine: str
    date: str
    commit: str
    rows: dict[str, dict[str, Any]]
    note: str = ""


Runs = Mapping[str, BenchmarkRun]


def stored() -> dict[str, BenchmarkRun]:
    return msgspec.json.decode(STORE.read_bytes(), type=dict[str, BenchmarkRun])


def store(runs: Runs) -> None:
    """A row of a benchmark is a line."""
    values = msgspec.to_builtins(dict(sorted(runs.items())))
    text = json.dumps(values, indent=1, ensure_ascii=False)
    STORE.write_text(re.sub(r"\{[^{}]*\}", lambda row: " ".join(row[0].split()), text) + "\n")


def texts() -> dict[str, str]:
    """The text of each block, without abbreviated lines."""
    return {name: _REPEATED.sub(_lines, text) for name, text in _BLOCK.findall(TEXTS.read_text())}


def _lines(match: re.Match[str]) -> str:
    """The lines that an abbreviated one stands for."""
    rows = (entry.strip().split(",") for entry in match[1].split(";"))
    return "".join(
        re.sub(r"\$(\d)", lambda place: row[int(place[1]) - 1], match[2])  # noqa: B023
        for row in rows
    )


def quoted() -> dict[str, set[str]]:
    """The cases that the texts quote, by benchmark, in the order of the texts."""
    cases: dict[str, set[str]] = {}
    for benchmark, case, *_ in _FIGURE.findall("".join(texts().values())):
        cases.setdefault(benchmark, set()).add(case)
    return cases


def rendered(document: str, runs: Runs) -> str:
    """The document with the figures of these runs. Raises MissingFigureError."""
    blocks = texts()

    def block(match: re.Match[str]) -> str:
        name = match[1]
        body = _table_of(runs) if name == RUNS else filled(blocks[name], runs)
        return f"<!-- figures: {name} -->\n{body}<!-- end -->\n"

    return _BLOCK.sub(block, document)


def filled(text: str, runs: Runs) -> str:
    """A text with its figures; sentences are wrapped. Raises MissingFigureError."""
    text = _FIGURE.sub(lambda match: _shown(runs, *match.groups()), text)
    if text.startswith("|"):
        return text
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False) + "\n"


def _shown(runs: Runs, benchmark: str, case: str, field: str | None, form: str | None) -> str:
    row = runs[benchmark].rows.get(case, {}) if benchmark in runs else {}
    unit = row.get("unit", "")
    if field == "row":
        return " | ".join(
            _shown(runs, benchmark, case, name, form_of_cell)
            for name, form_of_cell in (("ours", form), ("base", form), ("ratio", None))
        )
    number = row.get(field) if field else row.get("value", row.get("ours"))
    if number is None:
        reason = row.get("skipped") or f"no {field or 'value'}"
        raise MissingFigureError(f"{benchmark}: {case}: {reason}")
    if form == "%":
        return f"{_joined(number, 100)} %"
    if form == "-1":
        return figure(number - 1)
    if form == "n" or field in ("ratio", "rate") or unit not in (*_SECONDS, "B/s"):
        return _joined(number)
    largest = number[-1] if isinstance(number, list) else number
    unit, factor = _scale(largest, unit)
    return f"{_joined(number, factor)} {unit}"


def _scale(number: float, unit: str) -> tuple[str, float]:
    """The unit in which a reader wants the number, and what to multiply it with."""
    if unit == "B/s":
        return ("KB/s", 1e-3) if number >= 1e3 else (unit, 1.0)
    seconds = number * _SECONDS[unit]
    shown = "s" if seconds >= 1 else "ms" if seconds >= 1e-3 or not seconds else "µs"
    return shown, _SECONDS[unit] / _SECONDS[shown]


def _joined(number: Number, factor: float = 1.0) -> str:
    numbers = number if isinstance(number, list) else [number]
    return "-".join(figure(one * factor) for one in numbers)


def figure(number: float) -> str:
    """Three significant digits, and all digits of a number from 1,000."""
    if abs(number) >= 100:
        return f"{round(number):,}"
    return f"{Decimal(f'{number:.{_SHOWN_DIGITS}g}').normalize():f}"


def _table_of(runs: Runs) -> str:
    lines = ["| command | machine | date | commit |", "|---|---|---|---|"]
    for _, run in sorted(runs.items()):
        machine_and_note = f"{run.machine}; {run.note}" if run.note else run.machine
        lines.append(f"| `{run.command}` | {machine_and_note} | {run.date} | {run.commit} |")
    return "\n".join(lines) + "\n"


def measured(benchmark: str, cases: set[str]) -> BenchmarkRun:
    """Raises MissingFigureError."""
    words = ["python", f"benchmarks/{benchmark}.py", *WORDS.get(benchmark, ())]
    done = subprocess.run(
        [sys.executable, *words[1:], "--output", "json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MissingFigureError(f"{benchmark}: it ended with {done.returncode}")
    rows = {row.pop("case"): row for row in json.loads(done.stdout)}
    return BenchmarkRun(
        command=shlex.join(words),
        machine=machine(),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=commit(),
        rows={case: _rounded(rows[case]) for case in sorted(cases & rows.keys())},
    )


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: float(f"{value:.{_STORED_DIGITS}g}") if isinstance(value, float) else value
        for key, value in row.items()
    }


def machine() -> str:
    """What a figure depends on, without the machine's name."""
    text = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = os.uname().release.partition("-")[0]
    name = f" of {model[1]}" if model else ""
    return f"{os.cpu_count()} CPUs{name}, {math.ceil(memory)} GiB, Linux {kernel}"


def commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "agent", "benchmarks/*.py", "benchmarks/peers")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def measure(names: Sequence[str]) -> Iterator[str]:
    """Runs the benchmarks, and writes the figures of each after its end. Yields what it did."""
    for benchmark, cases in quoted().items():
        if names and benchmark not in names:
            continue
        began = time.monotonic()
        try:
            runs = {**stored(), benchmark: measured(benchmark, cases)}
            write(runs)
        except MissingFigureError as error:
            yield f"left as it was: {error}"
            continue
        store(runs)
        yield f"{benchmark}: measured in {time.monotonic() - began:.0f} s"


def write(runs: Runs) -> None:
    """Writes the documents; none if a figure is missing. Raises MissingFigureError."""
    pages = {path: rendered(path.read_text(), runs) for path in DOCUMENTS}
    for path, text in pages.items():
        path.write_text(text)


def main() -> int:
    """Exit code 1 for an unknown benchmark."""
    parser = argparse.ArgumentParser(description="Measures the figures of the documents.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a benchmark; without names: all")
    parser.add_argument("--render", action="store_true", help="only write the documents")
    given = parser.parse_args()
    if unknown := set(given.names) - quoted().keys():
        print(f"no document quotes {', '.join(sorted(unknown))}", file=sys.stderr)
        return 1
    if given.render:
        write(stored())
        return 0
    for line in measure(given.names):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
