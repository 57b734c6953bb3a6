"""What a soak has seen, and what of it is wrong."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median_low
from typing import Final, NamedTuple

import msgspec

from benchmarks.common import percentile

WARM_SECONDS: Final = 300.0
"""So long after its start a process may grow: caches and allocators get their size."""
JUDGED_SECONDS: Final = 600.0
"""A slope is judged if processes of its name were seen so long after they were warm."""
MAX_KB_PER_HOUR: Final = 4_000.0
"""A process whose memory grows faster leaks, if two standard errors do not explain it."""
FLUCTUATION: Final = {"files": 8, "group_files": 130, "threads": 8}
"""The medians of two times differ by so much without a leak: peers connect late, and the
agent closes the files of removed cgroups in batches."""
STATE_BYTES: Final = 16_384
CREATIONS: Final = 1_000
"""The first and the last so many creations of containers are compared."""
DISTURBED_SECONDS: Final = 20.0
"""So long after the end of a fault of the node creations may take longer."""
JUDGED_CREATIONS: Final = 400
MAX_P99_RATIO: Final = 1.5
_MIN_MINUTES: Final = 3
_WAYS: Final = ("proxied", "direct")


class Sample(NamedTuple):
    """What a process used. `process`: its node and its command; `at`: seconds."""

    process: str
    pid: int
    at: float
    used: Mapping[str, int]


class Creation(NamedTuple):
    """Two creations of a container, one after the other, in milliseconds. `at`: seconds."""

    at: float
    proxied: float
    direct: float


class Left(NamedTuple):
    """What a node has when all pods of the soak are gone."""

    cgroups: int
    state_bytes: int


class Slope(msgspec.Struct, frozen=True):
    """By least squares over all processes of one name, each from its own level. `error`: the
    standard error of the slope. `seconds`: how long they were seen after they were warm."""

    kb_per_hour: float
    error: float
    seconds: float

    @property
    def too_steep(self) -> bool:
        certain = self.kb_per_hour - 2 * self.error
        return self.seconds >= JUDGED_SECONDS and certain > MAX_KB_PER_HOUR


Series = Sequence[tuple[float, float]]
"""Seconds and values."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--output json`."""

    seconds: float
    seed: int
    pods: dict[str, int]
    """By way."""
    failed_pods: int
    rejected_pods: int
    """By a kubelet, because its device plugin was away, its clock jumped, or two schedulers chose
    one CPU."""
    overlaps: int
    drift: int
    leaked_fds: dict[str, int]
    """By process, as the others below."""
    leaked_threads: dict[str, int]
    rss_slope_kb_per_hour: dict[str, float | None]
    """None where no process was seen for long enough to compute one."""
    pss_slope_kb_per_hour: dict[str, float | None]
    slopes: dict[str, Slope]
    """Of RSS."""
    processes: dict[str, int]
    """How many of each name were seen: a killed one has a successor."""
    left_cgroups: dict[str, int]
    """By node, those that the last pods left behind more than the first ones."""
    left_state_bytes: dict[str, int]
    faults: dict[str, int]
    left_out: dict[str, str]
    """What can't happen here, with the reason."""
    creations: int
    """Those while nothing was broken on the node, as below."""
    p99_ms: dict[str, float]
    p99_ratio: float | None
    """How many times as long the last creations by the proxy take as the first ones, divided by the
    same of direct ones; None without enough of them."""
    findings: list[str]
    """What is wrong, in words."""


class Seen(msgspec.Struct, kw_only=True):
    """What a soak collects."""

    samples: list[Sample] = []
    creations: list[Creation] = []
    disturbed: list[tuple[float, float]] = []
    """When something was broken on the node of the creations, in seconds."""
    left: dict[str, list[Left]] = {}
    """By node and set-up, at the end of each wave."""
    overlaps: list[str] = []
    drift: list[str] = []
    failed_pods: list[str] = []
    rejected_pods: int = 0
    pods: dict[str, int] = {}
    faults: dict[str, int] = {}
    left_out: dict[str, str] = {}
    ended: str = ""
    """Why it ended before its time."""


def report(seen: Seen, seconds: float, seed: int) -> Report:
    lives = _lives(seen.samples)
    slopes = {
        name: {process: slope(_series(of, name)) for process, of in lives.items()}
        for name in ("rss_kb", "pss_kb")
    }
    rss = {process: of for process, of in slopes["rss_kb"].items() if of is not None}
    leaked_fds = {
        process: sum(
            grown(_series(of, name), FLUCTUATION[name]) for name in ("files", "group_files")
        )
        for process, of in lives.items()
    }
    threads = {
        process: grown(_series(of, "threads"), FLUCTUATION["threads"])
        for process, of in lives.items()
    }
    cgroups = {where: left[-1].cgroups - left[0].cgroups for where, left in seen.left.items()}
    state = {where: left[-1].state_bytes - left[0].state_bytes for where, left in seen.left.items()}
    calm = undisturbed(seen.creations, seen.disturbed)
    p99, ratio = latency(calm)
    findings = [
        *([f"it ended after {seconds:.0f} s: {seen.ended}"] if seen.ended else []),
        *(f"overlap: {text}" for text in seen.overlaps),
        *(f"drift: {text}" for text in seen.drift),
        *(f"pod that did not run: {text}" for text in seen.failed_pods),
        *(f"{name} has {count} more open files" for name, count in leaked_fds.items() if count),
        *(f"{name} has {count} more threads" for name, count in threads.items() if count),
        *(
            f"the memory of {name} grows by {of.kb_per_hour:.0f} KB an hour"
            f" (standard error {of.error:.0f}, bound {MAX_KB_PER_HOUR:.0f})"
            for name, of in rss.items()
            if of.too_steep
        ),
        *(f"{where}: {count} cgroups are left" for where, count in cgroups.items() if count > 0),
        *(
            f"{where}: the state folder has {count} bytes more"
            for where, count in state.items()
            if count > STATE_BYTES
        ),
    ]
    if ratio is not None and ratio > MAX_P99_RATIO and len(calm) >= JUDGED_CREATIONS:
        findings.append(f"the last creations take {ratio} times as long as the first ones: {p99}")
    return Report(
        seconds=round(seconds, 1),
        seed=seed,
        pods=seen.pods,
        failed_pods=len(seen.failed_pods),
        rejected_pods=seen.rejected_pods,
        overlaps=len(seen.overlaps),
        drift=len(seen.drift),
        leaked_fds=leaked_fds,
        leaked_threads=threads,
        rss_slope_kb_per_hour=_rates(slopes["rss_kb"]),
        pss_slope_kb_per_hour=_rates(slopes["pss_kb"]),
        slopes=rss,
        processes={process: len(of) for process, of in lives.items()},
        left_cgroups=cgroups,
        left_state_bytes=state,
        faults=seen.faults,
        left_out=seen.left_out,
        creations=len(calm),
        p99_ms=p99,
        p99_ratio=ratio,
        findings=findings,
    )


def slope(lives: Iterable[Series]) -> Slope | None:
    """Of the means of each minute, because samples near to each other are not independent."""
    centred: list[tuple[float, float]] = []
    seconds, number = 0.0, 0
    for life in map(_minutes, lives):
        if len(life) < _MIN_MINUTES:
            continue
        number += 1
        seconds += life[-1][0] - life[0][0]
        mean_at, mean = (sum(column) / len(life) for column in zip(*life, strict=True))
        centred += [(at - mean_at, value - mean) for at, value in life]
    spread = sum(at * at for at, _ in centred)
    if not spread:
        return None
    rate = sum(at * value for at, value in centred) / spread
    freedom = max(len(centred) - number - 1, 1)
    variance = sum((value - rate * at) ** 2 for at, value in centred) / freedom
    return Slope(round(rate * 3600, 1), round(math.sqrt(variance / spread) * 3600, 1), seconds)


def grown(lives: Iterable[Series], fluctuation: int) -> int:
    """By how much the median of the last third of a life exceeds that of the first third, at most
    of all lives; 0 within the fluctuation. While a peer is away, its files are closed."""
    most = 0
    for life in lives:
        third = len(life) // 3
        if third:
            values = [int(value) for _, value in life]
            most = max(most, median_low(values[-third:]) - median_low(values[:third]))
    return most if most > fluctuation else 0


def undisturbed(
    creations: Iterable[Creation], disturbed: Collection[tuple[float, float]]
) -> list[Creation]:
    """Those that did not begin or end near to one of these times."""
    return [
        creation
        for creation in creations
        if not any(begin <= creation.at <= end + DISTURBED_SECONDS for begin, end in disturbed)
    ]


def latency(creations: Sequence[Creation]) -> tuple[dict[str, float], float | None]:
    """The p99 of the first and the last creations by the proxy and without it, and the ratio."""
    count = min(CREATIONS, len(creations) // 2)
    if count < 2:
        return {}, None
    p99 = {
        f"{name}_{when}": round(percentile([getattr(creation, name) for creation in part], 99), 2)
        for name in _WAYS
        for when, part in (("first", creations[:count]), ("last", creations[-count:]))
    }
    growth = {name: p99[f"{name}_last"] / p99[f"{name}_first"] for name in _WAYS}
    return p99, round(growth["proxied"] / growth["direct"], 2)


def table(report: Report) -> str:
    """The report for people."""
    pods = ", ".join(f"{count} {way}" for way, count in report.pods.items())
    faults = ", ".join(f"{name} {count}" for name, count in report.faults.items())
    lines = [
        f"{report.seconds:.0f} s, seed {report.seed}",
        f"pods: {sum(report.pods.values())} ({pods}), failed {report.failed_pods},"
        f" rejected {report.rejected_pods}",
        f"faults: {faults or 'none'}",
        f"overlaps {report.overlaps}, drift {report.drift}",
        f"{report.creations} creations, p99 in ms: "
        + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.p99_ms.items())
        + f", ratio {report.p99_ratio}",
        "",
        f"{'process':<24}{'seen':>6}{'files':>8}{'threads':>9}{'RSS KB/h':>12}{'error':>8}"
        f"{'over s':>8}",
    ]
    for name, count in report.processes.items():
        rate, error, seconds = "-", "-", "-"
        if (of := report.slopes.get(name)) is not None:
            rate, error, seconds = f"{of.kb_per_hour:.0f}", f"{of.error:.0f}", f"{of.seconds:.0f}"
        lines.append(
            f"{name:<24}{count:>6}{report.leaked_fds[name]:>+8}{report.leaked_threads[name]:>+9}"
            f"{rate:>12}{error:>8}{seconds:>8}"
        )
    lines += ["", *(f"left out: {what}: {why}" for what, why in report.left_out.items())]
    return "\n".join([*lines, *report.findings])


def _lives(samples: Iterable[Sample]) -> dict[str, list[list[Sample]]]:
    """By process, the samples of each pid from when it was warm."""
    lives: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        lives[sample.process][sample.pid].append(sample)
    return {
        process: [
            [sample for sample in life if sample.at >= life[0].at + WARM_SECONDS]
            for life in of.values()
        ]
        for process, of in lives.items()
    }


def _series(lives: Iterable[Sequence[Sample]], name: str) -> list[Series]:
    return [[(sample.at, sample.used[name]) for sample in life] for life in lives]


def _minutes(life: Series) -> Series:
    """The means of each minute."""
    minutes: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for at, value in life:
        minutes[int(at // 60)].append((at, value))
    return [
        (sum(at for at, _ in of) / len(of), sum(value for _, value in of) / len(of))
        for of in minutes.values()
    ]


def _rates(slopes: Mapping[str, Slope | None]) -> dict[str, float | None]:
    return {process: of.kb_per_hour if of else None for process, of in slopes.items()}
