"""The report of a soak says what is wrong, and only that."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.soak.report import (
    CREATIONS,
    FLUCTUATION,
    JUDGED_CREATIONS,
    JUDGED_SECONDS,
    MAX_KB_PER_HOUR,
    STATE_BYTES,
    WARM_SECONDS,
    Creation,
    Left,
    Sample,
    Seen,
    grown,
    latency,
    report,
    slope,
    table,
)

HOUR = 3600
EVERY = 10
FLAT = {"rss_kb": 40_000, "pss_kb": 39_000, "threads": 5, "files": 20, "group_files": 40}


def life(pid: int, begin: float, seconds: float, process: str = "n1 agent") -> list[Sample]:
    """A process that uses the same all the time."""
    moments = range(int(begin), int(begin + seconds), EVERY)
    return [Sample(process, pid, float(at), dict(FLAT)) for at in moments]


def with_growth(samples: list[Sample], name: str, per_hour: float) -> list[Sample]:
    begin = samples[0].at
    return [
        sample._replace(
            used={**sample.used, name: int(FLAT[name] + per_hour * (sample.at - begin) / HOUR)}
        )
        for sample in samples
    ]


def seen_of(samples: list[Sample]) -> Seen:
    return Seen(samples=samples)


def test_processes_that_stay_as_they_are_are_no_finding() -> None:
    samples = life(1, 0, HOUR / 2) + life(2, HOUR / 2, HOUR / 2) + life(3, 0, HOUR, "n1 proxy")
    document = report(seen_of(samples), HOUR, 7)
    assert document.findings == []
    assert document.rss_slope_kb_per_hour == {"n1 agent": 0, "n1 proxy": 0}
    assert document.processes == {"n1 agent": 2, "n1 proxy": 1}
    assert document.leaked_fds == {"n1 agent": 0, "n1 proxy": 0}


@pytest.mark.parametrize(
    ("name", "per_hour", "word"),
    [
        ("rss_kb", 3 * MAX_KB_PER_HOUR, "memory"),
        ("files", 40, "files"),
        ("group_files", 800, "files"),
        ("threads", 40, "threads"),
    ],
)
def test_what_grows_in_every_life_is_told(name: str, per_hour: float, word: str) -> None:
    lives = [life(pid, pid * HOUR / 2, HOUR / 2) for pid in (0, 1)]
    samples = [sample for of in lives for sample in with_growth(of, name, per_hour)]
    (finding,) = report(seen_of(samples), HOUR, 7).findings
    assert "n1 agent" in finding
    assert word in finding


def test_the_size_that_a_process_gets_at_its_start_is_no_slope() -> None:
    samples = []
    for pid in range(4):
        for sample in life(pid, pid * HOUR / 4, HOUR / 4):
            warm = min((sample.at - pid * HOUR / 4) / WARM_SECONDS, 1)
            samples.append(sample._replace(used={**FLAT, "rss_kb": int(30_000 + 10_000 * warm)}))
    assert report(seen_of(samples), HOUR, 7).rss_slope_kb_per_hour == {"n1 agent": 0}


def test_a_slope_of_a_short_time_or_within_its_error_is_not_judged() -> None:
    steep = with_growth(life(1, 0, JUDGED_SECONDS), "rss_kb", 10 * MAX_KB_PER_HOUR)
    document = report(seen_of(steep), JUDGED_SECONDS, 7)
    assert document.slopes["n1 agent"].kb_per_hour > MAX_KB_PER_HOUR
    assert document.findings == []
    rng = random.Random(7)
    noisy = [
        sample._replace(used={**FLAT, "rss_kb": 40_000 + rng.randrange(30_000)})
        for sample in life(1, 0, HOUR)
    ]
    assert report(seen_of(noisy), HOUR, 7).findings == []


LEAK_KB_PER_HOUR = 2 * MAX_KB_PER_HOUR
"""It fills the memory limit of an agent's container within half a day."""
WARM_UP_KB, WARM_UP_SECONDS = 2_000, 150
"""As those of agents that were measured."""
NOISE_KB, NOISE_SECONDS = 200, 120
FREED_KB, FREED_SECONDS = 500, 47


def noisy(seed: int, life_minutes: float, leak: float) -> list[Sample]:
    """An hour of a process that is killed again and again, at random: it warms up, has memory that
    garbage collections free, and noise that changes slowly, and it leaks KB an hour."""
    rng = random.Random(seed)
    decay = math.exp(-EVERY / NOISE_SECONDS)
    samples: list[Sample] = []
    began, pid = 0.0, 0
    while began < HOUR:
        end = min(began + rng.expovariate(1 / (60 * life_minutes)), HOUR)
        level, noise = 40_000 + rng.gauss(0, 500), rng.gauss(0, NOISE_KB)
        for age in range(0, int(end - began), EVERY):
            noise = decay * noise + math.sqrt(1 - decay**2) * rng.gauss(0, NOISE_KB)
            warm = WARM_UP_KB * (1 - math.exp(-age / WARM_UP_SECONDS))
            garbage = FREED_KB * (age / FREED_SECONDS % 1)
            rss = int(level + noise + warm + garbage + leak * age / HOUR)
            samples.append(Sample("n1 agent", pid, began + age, {**FLAT, "rss_kb": rss}))
        began, pid = end, pid + 1
    return samples


@pytest.mark.parametrize("life_minutes", [1_000, 20, 12])
def test_a_leak_of_an_hour_is_told_and_noise_is_not(life_minutes: float) -> None:
    """However often the process is killed."""
    for seed in range(20):
        healthy = report(seen_of(noisy(seed, life_minutes, 0)), HOUR, 7)
        assert healthy.findings == [], seed
        leaking = report(seen_of(noisy(seed, life_minutes, LEAK_KB_PER_HOUR)), HOUR, 7)
        assert any("memory of n1 agent" in finding for finding in leaking.findings), seed


def test_all_that_is_wrong_is_counted_and_told() -> None:
    seen = Seen(
        overlaps=["a and b: CPUs 1"],
        drift=["n1: c"],
        failed_pods=["d"],
        ended="the machine does not answer",
        left={"n1, claims": [Left(10, 0), Left(12, STATE_BYTES + 1)]},
    )
    document = report(seen, 60, 7)
    assert (document.overlaps, document.drift, document.failed_pods) == (1, 1, 1)
    assert len(document.findings) == 6
    assert all(finding in table(document) for finding in document.findings)
    keys = msgspec.to_builtins(document).keys()
    assert {"overlaps", "drift", "leaked_fds", "rss_slope_kb_per_hour"} <= keys


@given(
    rate=st.floats(-1e5, 1e5),
    levels=st.lists(st.tuples(st.floats(0, 1e6), st.integers(4, 60)), min_size=1, max_size=4),
)
def test_a_line_has_its_own_slope_whatever_its_level(
    rate: float, levels: list[tuple[float, int]]
) -> None:
    lives = [
        [(float(at), level + rate * at / HOUR) for at in range(0, 60 * minutes, EVERY)]
        for level, minutes in levels
    ]
    of_lines = slope(lives)
    assert of_lines is not None
    assert math.isclose(of_lines.kb_per_hour, rate, abs_tol=0.2, rel_tol=1e-6)
    assert of_lines.error <= 0.2


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=30), min_size=1, max_size=3))
def test_only_a_higher_median_is_growth(values: list[list[int]]) -> None:
    lives = [[(float(at), float(value)) for at, value in enumerate(life)] for life in values]
    more = grown(lives, 0)
    assert more <= max(max(life) - min(life) for life in values)
    assert grown([[*life, *life, *life] for life in lives], 0) == 0
    assert grown(lives, FLUCTUATION["group_files"]) == 0


def test_files_that_are_closed_while_a_peer_is_away_are_no_growth_afterwards() -> None:
    away = range(40, 43)
    life = [(float(at), 11.0 if at in away else 20.0) for at in range(150)]
    assert grown([life], FLUCTUATION["files"]) == 0


def test_the_time_of_creations_is_compared_with_that_of_direct_ones() -> None:
    calm = [Creation(0.0, 12.0, 10.0)] * (2 * CREATIONS)
    assert latency(calm)[1] == 1
    slower_runtime = calm + [Creation(0.0, 24.0, 20.0)] * CREATIONS
    assert latency(slower_runtime)[1] == 1
    slower_proxy = calm + [Creation(0.0, 24.0, 10.0)] * CREATIONS
    p99, ratio = latency(slower_proxy)
    assert ratio == 2
    assert p99["proxied_last"] == 24
    assert latency([]) == ({}, None)


def test_slower_creations_are_told_unless_something_was_broken() -> None:
    creations = [
        Creation(float(at), 12.0 if at < JUDGED_CREATIONS else 24.0, 10.0)
        for at in range(2 * JUDGED_CREATIONS)
    ]
    (finding,) = report(Seen(creations=creations), HOUR, 7).findings
    assert "2.0 times" in finding
    broken = [(float(JUDGED_CREATIONS), 2.0 * JUDGED_CREATIONS)]
    document = report(Seen(creations=creations, disturbed=broken), HOUR, 7)
    assert document.findings == []
    assert document.creations == JUDGED_CREATIONS
    begun = Seen(creations=creations, disturbed=[(-60.0, 9.0)])
    assert report(begun, HOUR, 7).creations == 2 * JUDGED_CREATIONS - 30
