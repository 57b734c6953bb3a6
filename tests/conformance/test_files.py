"""Reading valid and invalid vector files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from conformance import files
from conformance.files import KINDS, CaseKind, Disagreement, FileError, FileResult
from tests.conformance.parity import CORRECT, NEGATIVE, PARITY, WRONG, ZERO, case
from tests.conformance.vectors import file, set_names

TWO = b'{"a": 1}\n{"b": [null]}\n'
READ = [(1, {"a": 1}), (2, {"b": [None]})]


@pytest.mark.parametrize(
    "content",
    [
        TWO,
        TWO.rstrip(),
        TWO.replace(b"\n", b"\r\n"),
        gzip.compress(TWO),
        gzip.compress(TWO[:12]) + gzip.compress(TWO[12:]),
    ],
    ids=["plain", "no last line end", "other line ends", "gzip", "gzip in two members"],
)
def test_the_content_determines_the_compression(tmp_path: Path, content: bytes) -> None:
    for name in ("cases.jsonl", "cases.jsonl.gz"):
        file = tmp_path / name
        file.write_bytes(content)
        assert list(files.read(str(file))) == READ


def test_blank_lines_are_counted_but_are_not_cases(tmp_path: Path) -> None:
    file = tmp_path / "cases"
    file.write_bytes(b'\n{"a": 1}\r\n \r\n\n{"b": [null]}\n\n')
    assert list(files.read(str(file))) == [(2, {"a": 1}), (5, {"b": [None]})]


def test_empty_file_has_no_cases(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert not list(files.read(str(tmp_path / "empty")))


LONG = gzip.compress(b"".join(b'{"number": %d}\n' % number for number in range(50_000)))


@pytest.mark.parametrize(
    ("content", "place", "reason"),
    [
        (b"{}\n{'a'}\n", ", line 2", "is not JSON"),
        (b'{}\n{}\n["a"]\n', ", line 3", "Expected `object`, got `array`"),
        (b'{"a": "\xff"}\n', ", line 1", "is not JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"\n", ", line 1", "is not JSON"),
        (b"\x1f\x8bnothing but text", "", "Unknown compression method"),
        (gzip.compress(b"")[:4], "", "ended before"),
        (gzip.compress(TWO)[:-9] + b"\0" * 9, ", line", ""),
        (LONG[: len(LONG) // 2], ", line", "ended before"),
    ],
    ids=[
        "bad JSON",
        "not an object",
        "not UTF-8",
        "deeply nested",
        "gzip magic number only",
        "truncated at the start",
        "wrong checksum",
        "truncated in the middle",
    ],
)
def test_invalid_files(tmp_path: Path, content: bytes, place: str, reason: str) -> None:
    file = tmp_path / "cases"
    file.write_bytes(content)
    with pytest.raises(FileError) as caught:
        list(files.read(str(file)))
    assert str(caught.value).startswith(f"{file}{place}")
    assert reason in str(caught.value)


def test_complete_cases_of_a_truncated_file_are_read_and_the_truncated_line_is_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cases"
    file.write_bytes(LONG[: len(LONG) // 2])
    read: list[dict[str, object]] = []
    with pytest.raises(FileError) as caught:
        read.extend(case for _, case in files.read(str(file)))
    assert read == [{"number": number} for number in range(len(read))]
    assert 1_000 < len(read) < 50_000
    assert f"line {len(read) + 1}: " in str(caught.value)


def test_a_line_that_is_too_long_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 20)
    file = tmp_path / "cases"
    file.write_bytes(b'{"a": 1}\n{"a": "01234567890"}\n')
    with pytest.raises(FileError, match="line 2: longer than 20 bytes"):
        list(files.read(str(file)))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="/none: No such file or directory"):
        list(files.read(str(tmp_path / "none")))
    with pytest.raises(FileError, match="Is a directory"):
        list(files.read(str(tmp_path)))


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
    for op in ("weight", None, 1, ["ls"], {}):
        assert files.find({"op": op}, [kind]) is None
        assert files.find({"op": op, "expect": 1}) is None


def test_kind_with_more_keys_is_tried_first() -> None:
    general = files.CaseKind("general", "", frozenset({"expect"}))
    for order in ((PARITY, general), (general, PARITY)):
        assert files.find({"number": 1, "expect": 1}, order) is PARITY
        assert files.find({"expect": 1}, order) is general


def test_every_kind_has_different_keys() -> None:
    assert len({(kind.keys, kind.ops) for kind in KINDS}) == len(KINDS) == len(NAMES)
