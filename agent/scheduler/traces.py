"""Traces of a GPU cluster in CSV files: nodes, pods, and the order in which pods arrive.

The files have the columns of the openb traces (Weng et al., USENIX ATC 2023). `gpu_milli`: the
requested thousandths of each GPU; `gpu_spec`: the allowed models, separated by `|`."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from agent.model.pod_request import GPU_MILLI, PodKind

FIRST_SEED: Final = 42
_MIB: Final = 1 << 20
_MAX_GPUS: Final = 64
_PERCENT: Final = 100
_NODE_COLUMNS: Final = ("cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class TraceError(ValueError):
    """A trace that can't be read; the message names file, line and column."""


class TraceNode(msgspec.Struct, frozen=True):
    """A node with GPUs of one `model`, "" without GPUs."""

    cpu_milli: int
    memory_bytes: int
    gpus: int
    model: str


def read_nodes(lines: Iterable[str], title: str) -> list[TraceNode]:
    """Raises TraceError. `title` names the file in errors."""
    nodes = [
        TraceNode(row["cpu_milli"], row["memory_mib"] * _MIB, row["gpu"], texts["model"] or "")
        for row, texts in _rows(lines, title, _NODE_COLUMNS, {"model"}, {"gpu": _MAX_GPUS})
    ]
    if not any(each.gpus for each in nodes):
        raise TraceError(f"{title}: no node has GPUs")
    return nodes


def read_pods(lines: Iterable[str], title: str) -> list[PodKind]:
    """Raises TraceError. Parts of GPUs are rounded up to whole percents, the unit of pods'
    requests. `title` names the file in errors."""
    pods = []
    limits = {"num_gpu": _MAX_GPUS, "gpu_milli": GPU_MILLI}
    for row, texts in _rows(lines, title, _POD_COLUMNS, set(), limits):
        gpus = row["num_gpu"]
        step = GPU_MILLI // _PERCENT
        gpu_milli = -(-row["gpu_milli"] // step) * step if gpus else 0
        models = tuple(sorted({*(texts.get("gpu_spec") or "").split("|")} - {""}))
        pods.append(
            PodKind(
                row["cpu_milli"],
                row["memory_mib"] * _MIB,
                gpus if gpu_milli else 0,
                gpu_milli,
                models,
            )
        )
    if not any(each.gpus for each in pods):
        raise TraceError(f"{title}: no pod requests GPUs")
    return pods


def _rows(
    lines: Iterable[str],
    title: str,
    columns: Sequence[str],
    text_columns: set[str],
    limits: Mapping[str, int],
) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
    """The numbers of each line by column, and its texts. `limits`: the largest number of a
    column."""
    reader = csv.DictReader(lines)
    if missing := [name for name in columns if name not in (reader.fieldnames or ())]:
        raise TraceError(f"{title}: line 1: no column {missing[0]}")
    try:
        for row in reader:
            numbers = {}
            for name in columns:
                if name in text_columns:
                    continue
                text = row[name] or ""
                if not (text.isascii() and text.isdigit() and len(text) <= 15):
                    where = f"{title}: line {reader.line_num}: {name}"
                    raise TraceError(f"{where}: {text!r} is not a whole number")
                numbers[name] = int(text)
                if (most := limits.get(name)) is not None and numbers[name] > most:
                    where = f"{title}: line {reader.line_num}: {name}"
                    raise TraceError(f"{where}: {text} is more than {most}")
            yield numbers, row
    except csv.Error as error:
        raise TraceError(f"{title}: line {reader.line_num}: {error}") from None


def arrivals(pods: Sequence[PodKind], gpus: int, load: float, seed: int) -> list[PodKind]:
    """All pods of the trace, and pods drawn from it until they request `load`, a part of all
    `gpus`, in the order in which they arrive."""
    drawn, requested_milli = random.Random(seed), sum(each.total_gpu_milli for each in pods)
    arriving = list(pods)
    while requested_milli < load * gpus * GPU_MILLI:
        arriving.append(chosen := drawn.choice(pods))
        requested_milli += chosen.total_gpu_milli
    drawn.shuffle(arriving)
    return arriving


def shuffled(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    return random.Random(seed * 7 + 1).sample(list(nodes), len(nodes))
