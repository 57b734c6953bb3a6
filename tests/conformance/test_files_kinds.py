"""The kind of a case."""

from __future__ import annotations

import pytest

from conformance import files
from conformance.files import KINDS
from tests.conformance.parity import PARITY
from tests.conformance.vectors import file, set_names

NAMES = {kind.name for kind in KINDS}


def test_every_kind_has_vectors() -> None:
    assert set(set_names()) >= NAMES


@pytest.mark.parametrize("name", set_names())
def test_every_case_has_its_kind(name: str) -> None:
    found = {files.find(case) for _, case in files.read(str(file(name)))}
    assert {kind and kind.name for kind in found} == {name if name in NAMES else None}


def test_additional_keys_are_ignored() -> None:
    assert files.find({"expect": 1, "number": 1, "comment": ""}, [PARITY]) is PARITY
    assert files.find({"number": 1}, [PARITY]) is None
    assert files.find({}, [PARITY]) is None


def test_an_operation_of_another_kind() -> None:
    """Several kinds have only the keys `op` and `expect` in common."""
    kind = files.CaseKind("pools", "", frozenset({"op"}), ops=("ls", "be"))
    assert files.find({"op": "ls"}, [kind]) is kind
    for other in ("quota", None, 1, ["ls"], {}):
        assert files.find({"op": other}, [kind]) is None
        assert files.find({"op": other, "expect": 1}) is None


def test_kind_with_more_keys_is_tried_first() -> None:
    general = files.CaseKind("general", "", frozenset({"expect"}))
    for order in ((PARITY, general), (general, PARITY)):
        assert files.find({"number": 1, "expect": 1}, order) is PARITY
        assert files.find({"expect": 1}, order) is general


def test_every_kind_has_different_keys() -> None:
    assert len({kind.keys for kind in KINDS}) == len(KINDS) == len(NAMES)
