from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from agent.__main__ import main
from agent.cli.commands import COMMANDS


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"topolet {metadata.version('topolet')}\n"


def test_manual_page_has_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    text = page.replace(r"\-", "-")
    for name, description in COMMANDS.items():
        assert f".SH TOPOLET {name.upper()}\n" in text
        assert description in text
    assert r"\fB--cpu-policy\fR \fIdynamic|none|static\fR" in text
    assert "unasked GPUs" not in text
    if shutil.which("man") is None:
        pytest.skip("man is missing: the page is not rendered")
    done = subprocess.run(
        ["man", "-l", "--warnings", "-"], input=page, capture_output=True, text=True, check=True
    )
    assert "topolet - node resource agent for Kubernetes" in done.stdout
    assert done.stderr == ""


def test_python_m_agent_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("topolet ")
