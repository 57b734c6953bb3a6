from __future__ import annotations

from pathlib import Path

import pytest

from agent.__main__ import main


def test_every_reason_is_printed_with_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--node-name=n1", "--mode=nri", f"--root={tmp_path}", "--kubelet-dir=/k"]
    assert main(["preflight", *words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert all(each.startswith("topolet: node n1: ") for each in lines)


def test_a_setting_that_is_not_valid_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--cpu-policy-options=foo"]) == 2
    assert "cpu-policy-options: 'foo' is not one of" in capsys.readouterr().err
