"""Reading valid and invalid vector files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from conformance import files
from conformance.files import FileError

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
