"""Which kind a case is of."""

from __future__ import annotations

import pytest

from agent.conformance import files, kinds
from agent.conformance.kinds import KINDS
from tests.conformance.parity import PARITY
from tests.conftest import SHARED

NAMES = {kind.name for kind in KINDS}

OTHERS = (
    "kubelet-state-files",
    "koordinator-device-requests",
    "koordinator-device-allocate",
    "koordinator-cpuset-decisions",
    "koordinator-node-numa",
    "nrt-match",
)
"""Kinds that there are vectors of, whether or not they are known here."""


@pytest.mark.parametrize("name", sorted(NAMES | set(OTHERS)))
def test_every_case_tells_its_kind(name: str) -> None:
    paths = [SHARED / "vectors" / f"{name}.{suffix}" for suffix in ("jsonl.gz", "jsonl")]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        pytest.skip(f"no {paths[0]}")
    found = {kinds.find(case) for _, case in files.read(str(path))}
    assert {kind and kind.name for kind in found} == {name if name in NAMES else None}


def test_keys_beyond_those_of_the_kind_are_no_matter() -> None:
    assert kinds.find(["expect", "number", "comment"], [PARITY]) is PARITY
    assert kinds.find(["number"], [PARITY]) is None
    assert kinds.find([], [PARITY]) is None


def test_kind_with_more_keys_goes_first() -> None:
    general = kinds.Kind("general", frozenset({"expect"}))
    for order in ((PARITY, general), (general, PARITY)):
        assert kinds.find(["number", "expect"], order) is PARITY
        assert kinds.find(["expect"], order) is general


def test_no_two_kinds_have_the_same_keys() -> None:
    assert len({kind.keys for kind in KINDS}) == len(KINDS) == len(NAMES)
