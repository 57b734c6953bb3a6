"""The command `topolet`, run in the process of the test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from agent.__main__ import main


class Printed(NamedTuple):
    """What a command has printed."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Topolet(Protocol):
    """Runs a command, which has to end with this exit code; None is any but 0."""

    def __call__(self, *words: str, code: int | None = 0) -> Printed: ...


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test, whose programs come before those of the machine."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def topolet(capfd: pytest.CaptureFixture[str]) -> Topolet:
    def run(*words: str, code: int | None = 0) -> Printed:
        capfd.readouterr()
        try:
            ended_with: object = main(words)
        except SystemExit as ended:
            ended_with = ended.code
        sys.stdout.flush()
        printed = Printed(*capfd.readouterr())
        assert (ended_with or 0) == code or (ended_with and code is None), printed
        return printed

    return run
