"""Verdicts on vector files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance import files
from conformance.files import CaseKind, Disagreement, FileError, FileResult
from tests.conformance.parity import CORRECT, NEGATIVE, PARITY, WRONG, ZERO, case

OTHER = CaseKind("other", "tests.conformance.absent", frozenset({"other"}))


def judge_cases(folder: Path, *cases: Any) -> FileResult:
    file = folder / "cases"
    file.write_text("".join(json.dumps(each) + "\n" for each in cases))
    return files.judge(str(file), (OTHER, PARITY))


def test_counts(tmp_path: Path) -> None:
    last = case(6, False)
    result = judge_cases(tmp_path, CORRECT, NEGATIVE, WRONG, ZERO, NEGATIVE, last, CORRECT, CORRECT)
    assert (result.file, result.kind) == (str(tmp_path / "cases"), "parity")
    assert (result.cases, result.agree, result.disagree) == (8, 3, 2)
    assert [(each.difference.name, each.cases) for each in result.declared] == [
        ("zero", 1),
        ("negative", 2),
    ]
    assert result.first == Disagreement(3, WRONG, actual=True)
    assert not result.passes


@pytest.mark.parametrize(
    ("correct", "zero", "negative", "too_many"),
    [
        (98, 2, 0, False),
        (97, 2, 0, True),
        (0, 0, 3, False),
        (49, 1, 50, False),
        (0, 1, 0, True),
    ],
)
def test_declared_differences_are_few_unless_listed(
    tmp_path: Path, correct: int, zero: int, negative: int, too_many: bool
) -> None:
    result = judge_cases(tmp_path, *[CORRECT] * correct, *[ZERO] * zero, *[NEGATIVE] * negative)
    assert result.too_many_declared is too_many
    assert result.passes is not too_many


@pytest.mark.parametrize(
    ("cases", "reason"),
    [
        ([], ": has no case"),
        ([{}], ", line 1: a case of an unknown kind; its keys: none"),
        ([CORRECT, {"what": 1, "a": 2}], ", line 2: a case of an unknown kind; its keys: a, what"),
        ([CORRECT, {"other": 1}], ", line 2: other among parity; its keys: other"),
        ([{"number": {}, "expect": 1}], ", line 1: missing or unknown: 'value'"),
        (
            [CORRECT, CORRECT, {"number": 7, "expect": 1}],
            ", line 3: TypeError: 'int' object is not",
        ),
        ([case("odd", True)], ", line 1: TypeError: "),
        ([{"number": [], "expect": 1}], ", line 1: TypeError: list indices"),
    ],
)
def test_an_invalid_case_is_named(tmp_path: Path, cases: list[Any], reason: str) -> None:
    with pytest.raises(FileError) as caught:
        judge_cases(tmp_path, *cases)
    assert str(caught.value).startswith(f"{tmp_path}/cases{reason}")
