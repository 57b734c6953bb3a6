"""Shared by all benchmarks: interleaved samples, the table, `--output json`, `--quick`."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def arguments(
    doc: str | None, add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """Parses `--output text|json`, `--quick` and the benchmark's own arguments. `doc`: the
    benchmark's docstring."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("--quick", action="store_true", help="end within 30 s")
    if add_arguments is not None:
        add_arguments(parser)
    return parser.parse_args()


def interleaved(calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """The seconds of every call in every round; the calls take turns, after one warm-up round."""
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            if turn:
                samples[index].append(time.perf_counter() - start)
    return samples


def timed(call: Callable[[], Any], calls: int) -> list[int]:
    """The nanoseconds of each call."""
    took = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        took.append(time.perf_counter_ns() - start)
    return took


def median_ms(nanoseconds: Sequence[int]) -> float:
    return statistics.median(nanoseconds) / 1e6


def ratio_row(case: str, ours: float, base: float, base_name: str, unit: str, **more: float) -> Row:
    """A row with a base; `ratio` is ours / base."""
    return {
        "case": case,
        "ours": ours,
        "base": base,
        "base_name": base_name,
        "ratio": ours / base,
        "unit": unit,
        **more,
    }


def value_row(case: str, value: float, unit: str) -> Row:
    """A row without a base, such as memory."""
    return {"case": case, "value": value, "unit": unit}


def skipped_row(case: str, ours: float, unit: str, reason: str) -> Row:
    """A row whose base is missing on this machine."""
    return {"case": case, "ours": ours, "unit": unit, "skipped": reason}


def percentile(samples: Sequence[float], percent: int) -> float:
    """The value below which `percent` of the samples are."""
    if len(samples) < 2:
        return samples[0]
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]


def report(rows: Sequence[Row], output: str) -> None:
    """Prints the rows, as JSON if requested. Raises ValueError for a repeated case."""
    names = [row["case"] for row in rows]
    if len(set(names)) < len(names):
        raise ValueError(f"a case occurs twice: {names}")
    if output == "json":
        json.dump(list(rows), sys.stdout, indent=1)
        print()
        return
    columns = (
        *("case", "ours", "base", "base_name", "ratio", "unit", "p99"),
        *("cold", "cold_p99", "cpu_us", "note"),
    )
    table = [columns]
    for row in rows:
        cells = {**row, "ours": row.get("ours", row.get("value")), "note": row.get("skipped")}
        table.append(tuple(_cell(cells.get(column)) for column in columns))
    used = [i for i in range(len(columns)) if any(line[i] for line in table[1:])]
    widths = {i: max(len(line[i]) for line in table) for i in used}
    for line in table:
        print("  ".join(line[i].ljust(widths[i]) for i in used).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
