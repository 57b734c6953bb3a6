"""`python -m conformance` compares Topolet's decisions with vector files: the answers of other
systems to cases, one JSON object in each line.

A file is plain text or gzip; the keys of its cases determine its kind. Without FILE: every file of
tests/data/vectors; files of an unknown kind there are listed. Exit code 0: no case disagrees; 1:
one disagrees, or too many differ in declared ways; 2: a file can't be read, or the kind of a FILE
is unknown.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.view import format
from agent.view.format import count
from conformance import files as runs
from conformance.files import (
    DECLARED_PERCENT,
    KINDS,
    CaseKind,
    Disagreement,
    FileError,
    FileResult,
    UnknownKindError,
)

VECTORS: Final = Path(__file__).resolve().parents[1] / "tests" / "data" / "vectors"

_COLUMNS = 100
_MAX_JSON_CHARACTERS = 600
"""The limit of a JSON value in the text output."""
_CHARACTERS_BEFORE = 100
"""Shown before the first difference of two texts."""

SCHEMA_VERSION = 1
"""The version of the JSON output."""


def main(
    words: Sequence[str] | None = None, known: Sequence[CaseKind] = KINDS, vectors: Path = VECTORS
) -> int:
    """Compares every file, or those of the folder `vectors`. A file that can't be read gets a line
    on standard error and no result."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="vector file (default: those of the checkout)"
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args(words)
    unread = False
    results: list[FileResult] = []
    uncompared: list[str] = []
    files = arguments.files or [str(path) for path in sorted(vectors.glob("*.jsonl*"))]
    if not files:
        _print_error(f"no FILE given, and no vector files in {vectors}")
        return 2
    try:
        for path in files:
            try:
                result = runs.judge(path, known)
            except FileError as error:
                if not arguments.files and _is_of_unknown_kind(error, path, known):
                    if arguments.output == "text":
                        print(format.encodable(f"{path}: not compared: unknown kind"), flush=True)
                    uncompared.append(path)
                    continue
                _print_error(str(error))
                unread = True
                continue
            if arguments.output == "text":
                print(format.encodable(described(result)), end="", flush=True)
            if result.too_many_declared:
                _print_error(f"{result.file}: {_too_many(result)}")
            results.append(result)
        if arguments.output == "json":
            bodies = [body(result) for result in results]
            bodies += [{"file": path, "kind": None} for path in uncompared]
            json.dump({"schema_version": SCHEMA_VERSION, "files": bodies}, sys.stdout, indent=1)
            print(flush=True)
    except OSError as error:
        failed = format.unwritten("conformance", error)
        if failed:
            return failed
    if unread:
        return 2
    return 0 if all(result.passes for result in results) else 1


def _is_of_unknown_kind(error: FileError, path: str, known: Sequence[CaseKind]) -> bool:
    """Whether no kind of case fits the file. A file with the name of a known kind is damaged
    instead."""
    name = Path(path).name.partition(".")[0]
    return isinstance(error, UnknownKindError) and name not in {kind.name for kind in known}


def described(result: FileResult) -> str:
    """A few lines of text, with the first disagreement as JSON: whole if it is short, otherwise the
    part around the place where the answers differ."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: FileResult) -> Iterator[str]:
    yield f"{result.file}: {result.kind}, {result.cases:,} {_noun('case', result.cases)}"
    width = len(f"{result.cases:,}")
    indent = " " * (width + 3)

    def counted(number: int, what: str) -> str:
        return f"  {number:>{width},} {what}"

    yield counted(result.agree, _verb("agree", result.agree))
    for each in result.declared:
        difference = each.difference
        kind = "listed" if difference.listed else "declared"
        yield counted(each.cases, f"{_verb('differ', each.cases)}, {kind}: {difference.name}")
        yield from textwrap.wrap(
            difference.reason, _COLUMNS, initial_indent=indent, subsequent_indent=indent
        )
    yield counted(result.disagree, _verb("disagree", result.disagree))
    if result.first:
        yield from _disagreement_lines(result.first, indent)


def _disagreement_lines(first: Disagreement, indent: str) -> Iterator[str]:
    question = _json({key: value for key, value in first.case.items() if key != "expect"})
    # With sorted keys, equal answers are equal texts.
    answers = first.case.get("expect"), first.actual
    expect, actual = (_json(answer, sort_keys=True) for answer in answers)
    pairs = enumerate(zip(expect, actual, strict=False))
    differ_at = next((place for place, (expected, got) in pairs if expected != got), 0)
    cut = max(map(len, (question, expect, actual))) > _MAX_JSON_CHARACTERS
    yield f"{indent}first: line {first.line}{' (--output json shows all of it)' if cut else ''}"
    yield f"{indent}case   {_excerpt(question, 0)}"
    yield f"{indent}expect {_excerpt(expect, differ_at)}"
    yield f"{indent}actual {_excerpt(actual, differ_at)}"


def _excerpt(text: str, place: int) -> str:
    """The text, or, if it is too long, the part of it around `place`."""
    if len(text) <= _MAX_JSON_CHARACTERS:
        return text
    start = max(0, place - _CHARACTERS_BEFORE)
    before = "... " if start else ""
    after = " ..." if start + _MAX_JSON_CHARACTERS < len(text) else ""
    return f"{before}{text[start : start + _MAX_JSON_CHARACTERS]}{after}"


def body(result: FileResult) -> dict[str, Any]:
    return {
        "file": result.file,
        "kind": result.kind,
        "cases": result.cases,
        "agree": result.agree,
        "declared": {each.difference.name: each.cases for each in result.declared},
        "disagree": result.disagree,
        "first": msgspec.to_builtins(result.first),
    }


def _too_many(result: FileResult) -> str:
    cases = count(result.cases, "case")
    return (
        f"{count(result.unlisted, 'declared difference')} in {cases}: "
        f"more than {DECLARED_PERCENT} %"
    )


def _json(value: Any, sort_keys: bool = False) -> str:
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":"), sort_keys=sort_keys)


def _noun(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"


def _verb(verb: str, number: int) -> str:
    return f"{verb}s" if number == 1 else verb


def _print_error(text: str) -> None:
    print(f"conformance: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
