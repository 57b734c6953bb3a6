from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from agent.cli.commands import COMMANDS
from tests.cli.conftest import Topolet


@pytest.fixture
def bash(topolet: Topolet, tmp_path: Path) -> Path:
    path = tmp_path / "topolet.bash"
    path.write_text(topolet("completion", "bash").out)
    return path


def completed(bash: Path, *command_line: str, folder: Path | None = None) -> list[str]:
    """The completions of bash for the last word."""
    line = " ".join(map(shlex.quote, command_line))
    program = (
        f". {bash}; COMP_WORDS=({line}); COMP_CWORD={len(command_line) - 1}; "
        '_shtab_topolet; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, check=True, cwd=folder
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ([""], list(COMMANDS)),
        (["pro"], ["proxy"]),
        (["agent", "--cpu-policy"], ["--cpu-policy", "--cpu-policy-options"]),
        (["proxy", "--cpu-policy"], []),
        (["agent", "--no-dev"], ["--no-devices"]),
        (["agent", "--cpu-policy", "s"], ["static"]),
        (["agent", "--devices", ""], ["true", "false"]),
        (["doctor", "-o", ""], ["text", "json"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_commands_flags_and_values(bash: Path, words: list[str], completions: list[str]) -> None:
    assert completed(bash, "topolet", *words) == completions


def test_files(bash: Path, tmp_path: Path) -> None:
    (tmp_path / "some.toml").touch()
    for words in (("agent", "--config"), ("config", "check")):
        assert completed(bash, "topolet", *words, "so", folder=tmp_path) == ["some.toml"]


def test_zsh(topolet: Topolet) -> None:
    script = topolet("completion", "zsh").out
    assert script.startswith("#compdef topolet\n")
    assert ":dynamic|none|static:(dynamic none static)" in script
