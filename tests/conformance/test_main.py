"""The command `python -m conformance`."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import __main__ as conformance
from conformance.files import Disagreement, FileResult
from tests.conformance.parity import CORRECT, NEGATIVE, PARITY, WRONG, ZERO


def write(folder: Path, name: str, *cases: dict[str, Any]) -> str:
    file = folder / name
    file.write_bytes(gzip.compress("".join(json.dumps(each) + "\n" for each in cases).encode()))
    return str(file)


def run(*arguments: str, vectors: Path = Path("/nonexistent")) -> int:
    return conformance.main(arguments, [PARITY], vectors)


def program(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "text": True, **options}
    command = [sys.executable, "-m", "conformance", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=60, **options)


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [CORRECT] * 1000 + [NEGATIVE, NEGATIVE, WRONG, ZERO]
    mixed = write(tmp_path, "mixed", *cases)
    single = write(tmp_path, "single", CORRECT)
    assert run(mixed, single) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == (
        f"{mixed}: parity, 1,004 cases\n"
        "  1,000 agree\n"
        "      1 differs, declared: zero\n"
        "        zero is even\n"
        "      2 differ, listed: negative\n"
        "        a negative number is as even as the same number above zero, "
        "but the other implementation\n"
        "        treats all of them as odd\n"
        "      1 disagrees\n"
        "        first: line 1003\n"
        '        case   {"number":{"value":4}}\n'
        "        expect false\n"
        "        actual true\n"
        f"{single}: parity, 1 case\n"
        "  1 agrees\n"
        "  0 disagree\n"
    )


def disagreeing(case: dict[str, Any], actual: Any) -> list[str]:
    """The lines of the text output: first, case, expect, actual."""
    first = Disagreement(7, case, actual)
    text = conformance.described(FileResult("file", "kind", 7, 6, (), 1, first))
    return [line.strip() for line in text.splitlines()[-4:]]


def test_a_long_case_is_cut_at_the_difference() -> None:
    equal = {f"step{number:03}": "same" for number in range(200)}
    expect, actual = {**equal, "step150": "theirs"}, {**equal, "step150": "other"}
    first, case, expect_line, actual_line = disagreeing(
        {"list": ["x"] * 2_000, "expect": expect}, actual
    )
    assert first == "first: line 7 (--output json shows all of it)"
    assert case.startswith('case   {"list":["x",')
    for line, answer in ((expect_line, '"step150":"theirs",'), (actual_line, '"step150":"other",')):
        assert answer in line
    for line in (case, expect_line, actual_line):
        assert line.endswith(" ...")
        assert len(line) < 700


def test_long_answer_next_to_a_short_one() -> None:
    first, case, expect_line, actual_line = disagreeing(
        {"need": 1, "expect": "x" * 1_000}, {"error": "none"}
    )
    assert first.endswith("(--output json shows all of it)")
    assert (case, actual_line) == ('case   {"need":1}', 'actual {"error":"none"}')
    assert expect_line.startswith('expect "xxx')


def test_keys_are_sorted() -> None:
    _, case, expect_line, actual_line = disagreeing(
        {"b": 1, "a": 2, "expect": {"y": 1, "x": 2}}, {"x": 3}
    )
    assert case == 'case   {"b":1,"a":2}'
    assert (expect_line, actual_line) == ('expect {"x":2,"y":1}', 'actual {"x":3}')


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = write(tmp_path, "mixed", *[CORRECT] * 97, NEGATIVE, ZERO, WRONG)
    correct = write(tmp_path, "good", CORRECT)
    assert run(mixed, correct, "--output=json") == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    found = json.loads(captured.out)
    assert found["schema_version"] == 1
    assert found["files"] == [
        {
            "file": mixed,
            "kind": "parity",
            "cases": 100,
            "agree": 97,
            "declared": {"zero": 1, "negative": 1},
            "disagree": 1,
            "first": {"line": 100, "case": WRONG, "actual": True},
        },
        {
            "file": correct,
            "kind": "parity",
            "cases": 1,
            "agree": 1,
            "declared": {},
            "disagree": 0,
            "first": None,
        },
    ]


def test_too_many_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "cases", *[CORRECT] * 97, ZERO, ZERO)
    assert run(file) == 1
    assert capsys.readouterr().err == (
        f"conformance: {file}: 2 declared differences in 99 cases: more than 2 %\n"
    )


@pytest.mark.parametrize("output", ["text", "json"])
def test_unreadable_file_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    missing = str(tmp_path / "none")
    wrong = write(tmp_path, "wrong", WRONG)
    unknown = write(tmp_path, "unknown", {"what": 1})
    assert run(missing, wrong, unknown, f"--output={output}") == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [
        f"conformance: {missing}: No such file or directory",
        f"conformance: {unknown}, line 1: a case of an unknown kind; its keys: what",
    ]
    if output == "json":
        assert [entry["file"] for entry in json.loads(captured.out)["files"]] == [wrong]
    else:
        assert captured.out.startswith(f"{wrong}: parity, 1 case\n  0 agree\n  1 disagrees\n")


def test_without_files_the_checkouts_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    correct = write(tmp_path, "parity.jsonl.gz", CORRECT)
    later = write(tmp_path, "later.jsonl", {"what": 1})
    write(tmp_path, "README.md", {"what": 1})
    assert run(vectors=tmp_path) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        f"{later}: not compared: unknown kind\n"
        f"{correct}: parity, 1 case\n  1 agrees\n  0 disagree\n",
        "",
    )
    assert run("--output=json", vectors=tmp_path) == 0
    *_, last = json.loads(capsys.readouterr().out)["files"]
    assert last == {"file": later, "kind": None}
    assert run(later) == 2, "a named file must be compared"


@pytest.mark.parametrize(
    "cases", [[{"what": 1}], [CORRECT, {"what": 1}], [WRONG]], ids=["other", "mixed", "wrong"]
)
def test_an_invalid_file_of_the_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: list[dict[str, Any]]
) -> None:
    write(tmp_path, "parity.jsonl", *cases)
    assert run(vectors=tmp_path) == (1 if cases == [WRONG] else 2)


def test_without_files_and_without_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(vectors=tmp_path / "none") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("conformance: no FILE given, and no vector files in ")


def test_json_of_nothing_is_an_empty_list(tmp_path: Path) -> None:
    done = program(str(tmp_path), "--output=json")
    assert (done.returncode, json.loads(done.stdout)["files"]) == (2, [])
    assert done.stderr == f"conformance: {tmp_path}: Is a directory\n"


def test_file_name_that_is_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = os.fsdecode(bytes(tmp_path) + b"/\xff")
    (tmp_path / write(tmp_path, "cases", CORRECT)).rename(file)
    assert run(file) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}/?: parity")


def test_full_disk(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = program(str(tmp_path), "--output=json", stdout=full)
    assert done.returncode == 1
    assert done.stderr.endswith("conformance: standard output: No space left on device\n")
