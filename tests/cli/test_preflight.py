from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Topolet


def test_every_reason_is_printed_with_the_node(tmp_path: Path, topolet: Topolet) -> None:
    words = ["--node-name=n1", "--mode=nri", f"--root={tmp_path}", "--kubelet-dir=/k"]
    lines = topolet("preflight", *words, code=1).err.splitlines()
    assert len(lines) >= 3
    assert all(each.startswith("topolet: node n1: ") for each in lines)
