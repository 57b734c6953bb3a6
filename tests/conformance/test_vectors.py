"""The verdicts on all vectors, and on the same cases with a changed answer."""

from __future__ import annotations

import copy
import functools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pytest

from conformance import files
from conformance.files import KINDS, CaseKind
from tests.conformance.vectors import file

Json = dict[str, Any]
Path = tuple[str | int, ...]

VERDICTS: Final[dict[str, Counter[str | None]]] = {
    "koordinator-take-cpus": Counter({None: 5986, "more-than-requested": 14}),
    "koordinator-merge-hints": Counter({None: 3963}),
    "kubelet-take-cpus": Counter({None: 3989, "shared-slice": 11}),
    "kubelet-static-policy": Counter(
        {None: 721, "half-cores": 11, "reused-while-held": 1, "shared-pool-emptied": 17}
    ),
    "kubelet-merge-hints": Counter({None: 3000}),
    "koordinator-cpuset-decisions": Counter(
        {
            None: 1251,
            "claimed-twice": 4,
            "kubelet-decides": 165,
            "be-by-label": 3,
            "stray-comma": 20,
            "empty-pool": 57,
        }
    ),
    "koordinator-aggregate": Counter({None: 600}),
    "koordinator-batch-mid": Counter({None: 1000}),
    "koordinator-predict": Counter({None: 600}),
    "koordinator-nodeslo": Counter({None: 600}),
    "koordinator-evict": Counter(
        {None: 848, "bytes-times-1000": 16, "idle-below-one-core": 9, "victims-in-vain": 127}
    ),
    "koordinator-resctrl": Counter({None: 603, "mask-without-ways": 57}),
    "koordinator-memory-qos": Counter(
        {None: 198, "protected-beyond-node": 5, "pods-killed-together": 597}
    ),
    "koordinator-be-suppress": Counter(
        {None: 971, "no-cpu-for-be": 5, "part-dropped": 17, "unlimited-left": 7}
    ),
    "koordinator-cpu-burst": Counter(
        {None: 516, "burst-above-quota": 145, "pod-quota-accumulated": 56, "whole-seconds": 83}
    ),
    "kubelet-state-files": Counter({None: 14}),
    "koordinator-device-requests": Counter(
        {None: 1893, "uneven-shares": 39, "core-of-several-cards": 30, "for-all-healthy": 11}
    ),
    "koordinator-device-allocate": Counter(
        {
            None: 1242,
            "core-of-several-cards": 1,
            "for-all-healthy": 3,
            "pcie-level-exclusion": 15,
            "partition-order": 20,
            "shares-as-requested": 30,
            "several-shares-in-scope": 12,
            "switch-that-works": 17,
            "as-many-as-requested": 5,
            "gpu-beside-nic": 2,
            "score-of-what-is-held": 648,
        }
    ),
    "koordinator-node-numa": Counter(
        {
            None: 837,
            "policy-spellings": 93,
            "one-numa-node": 50,
            "be-owns-cpus": 3,
            "strategy-unheard": 10,
            "halved-cores": 1,
            "amplified-without-topology": 1,
            "exclusive-ignored": 1,
            "claims-without-topology": 2,
            "owned-without-amounts": 10,
            "resource-not-in-zone": 1,
            "amplified-without-cpu": 1,
        }
    ),
    "nrt-match": Counter(
        {
            None: 1635,
            "sidecars-stay": 61,
            "restricted-has-an-end": 34,
            "restricted-prefers": 1,
            "init-containers-bind": 1,
            "not-of-zones": 234,
            "init-containers-end": 9,
            "policy-by-another-spelling": 35,
        }
    ),
}
"""The number of cases by kind and declared difference; None counts the agreeing ones."""

NOT_COMPARED: Final[dict[str, set[str]]] = {
    "koordinator-take-cpus": {"error"},
    "kubelet-take-cpus": {"error", "hang"},
    "kubelet-static-policy": {"start.error", "steps.*.error"},
    "koordinator-cpuset-decisions": {
        "error",
        "ruleError",
        "ls",
        "be",
        "nodeReservation",
        "systemQOS",
    },
    "koordinator-be-suppress": {"panic"},
    "koordinator-device-allocate": {"code", "error"},
    "koordinator-node-numa": {"error", "stage"},
}
"""Fields of an answer that may differ in their value: texts of errors, and what is empty."""

BY_REQUEST: Final = ("koordinator-device-requests", "koordinator-device-allocate")
"""Kinds of which most differences are declared for a request, whatever the other answer is."""


@functools.cache
def judged(kind: CaseKind) -> dict[str | None, list[Json]]:
    """The cases by declared difference; None has the agreeing ones. Fails at a case that
    disagrees."""
    judge = kind.load().judge
    cases: dict[str | None, list[Json]] = defaultdict(list)
    for _, case in files.read(str(file(kind.name))):
        verdict = judge(case)
        assert verdict.agrees or verdict.declared, (case, verdict.actual)
        cases[verdict.declared].append(case)
    return cases


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All values that are not composed, and empty lists and objects."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        if child and isinstance(child, dict | list):
            yield from leaves(child, (*path, key))
        else:
            yield (*path, key), child


def replaced(value: Any, path: Path, leaf: Any) -> Any:
    """A copy with another leaf."""
    if not path:
        return leaf
    changed = copy.copy(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], leaf)
    return changed


def another(leaf: Any) -> Any:
    if isinstance(leaf, bool):
        return not leaf
    return leaf + 1 if isinstance(leaf, int) else "9999"


def changed_answers(kind: CaseKind, cases: list[Json]) -> Iterator[tuple[str, Json]]:
    """Random cases, with one field of each answer changed: its path, and the case."""
    for case in random.Random(1).sample(cases, min(len(cases), 40)):
        changed = set()
        for path, leaf in leaves(case["expect"]):
            field = ".".join("*" if isinstance(key, int) else key for key in path)
            if field not in changed | NOT_COMPARED.get(kind.name, set()):
                changed.add(field)
                yield field, {**case, "expect": replaced(case["expect"], path, another(leaf))}


def verdicts_on_changed(kind: CaseKind, cases: list[Json]) -> Counter[str | None]:
    """The verdicts by declared difference; "agrees" counts the agreeing ones."""
    judge, verdicts = kind.load().judge, Counter[str | None]()
    for _, case in changed_answers(kind, cases):
        try:
            verdict = judge(case)
        except (KeyError, TypeError, ValueError):
            verdicts[None] += 1
        else:
            verdicts["agrees" if verdict.agrees else verdict.declared] += 1
    return verdicts


ALL_KINDS = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
WITH_ANSWERS = pytest.mark.parametrize(
    "kind", [each for each in KINDS if "expect" in each.keys], ids=lambda kind: kind.name
)


@ALL_KINDS
def test_verdicts_on_vectors(kind: CaseKind) -> None:
    assert {name: len(cases) for name, cases in judged(kind).items()} == VERDICTS[kind.name]


@ALL_KINDS
def test_a_file_of_vectors_passes(kind: CaseKind) -> None:
    unlisted = {each.name for each in kind.load().differences if not each.listed}
    counted = VERDICTS[kind.name]
    assert sum(counted[name] for name in unlisted) * 50 <= counted.total()


@WITH_ANSWERS
def test_every_field_of_an_answer_is_compared(kind: CaseKind) -> None:
    verdicts = verdicts_on_changed(kind, judged(kind)[None])
    assert not verdicts.pop("agrees", 0)
    assert verdicts[None] > 0.8 * verdicts.total()


@WITH_ANSWERS
def test_an_answer_of_another_kind_disagrees(kind: CaseKind) -> None:
    judge = kind.load().judge
    cases = random.Random(2).sample(judged(kind)[None], 80)
    for case, other in zip(cases[:40], cases[40:], strict=True):
        if case["expect"].keys() != other["expect"].keys() and "hang" not in other["expect"]:
            with_other = {**case, "expect": other["expect"]}
            try:
                assert not judge(with_other).agrees, with_other
            except KeyError:
                assert "op" in case


@WITH_ANSWERS
def test_a_changed_answer_of_a_declared_difference_is_not_declared(kind: CaseKind) -> None:
    for name, cases in judged(kind).items():
        if name is not None and kind.name not in BY_REQUEST:
            verdicts = verdicts_on_changed(kind, cases)
            assert verdicts[name] <= verdicts.total() / 2, name
