from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.__main__ import COMMANDS, main


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.fixture
def bash(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    path = tmp_path / "topolet.bash"
    path.write_text(script(capsys, "bash"))
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


def test_commands(bash: Path) -> None:
    assert completed(bash, "topolet", "") == list(COMMANDS)
    assert completed(bash, "topolet", "pro") == ["proxy"]


def test_flags_of_a_command(bash: Path) -> None:
    assert completed(bash, "topolet", "agent", "--cpu-policy") == [
        "--cpu-policy",
        "--cpu-policy-options",
    ]
    assert "--no-devices" in completed(bash, "topolet", "agent", "--no-")
    assert completed(bash, "topolet", "proxy", "--cpu-policy") == []


def test_values_of_a_flag(bash: Path) -> None:
    assert completed(bash, "topolet", "agent", "--cpu-policy", "s") == ["static"]
    assert completed(bash, "topolet", "agent", "--devices", "") == ["true", "false"]
    assert completed(bash, "topolet", "doctor", "-o", "") == ["text", "json"]
    assert completed(bash, "topolet", "completion", "z") == ["zsh"]


def test_files(bash: Path, tmp_path: Path) -> None:
    (tmp_path / "some.toml").touch()
    for words in (("agent", "--config"), ("config", "check")):
        assert completed(bash, "topolet", *words, "so", folder=tmp_path) == ["some.toml"]


def test_zsh(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "_topolet"
    path.write_text(script(capsys, "zsh"))
    assert path.read_text().startswith("#compdef topolet\n")
    if shutil.which("zsh") is None:
        pytest.skip("zsh is missing")
    program = 'compdef() { :; }; eval "$(< $1)"; print -l -- "${_shtab_topolet_agent_options[@]}"'
    done = subprocess.run(
        ["zsh", "-fc", program, "zsh", str(path)], capture_output=True, text=True, check=True
    )
    assert ":dynamic|none|static:(dynamic none static)" in done.stdout
