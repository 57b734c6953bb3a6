from __future__ import annotations

from pathlib import Path

import pytest

from agent.__main__ import main


def test_a_valid_file_of_all_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text('state-dir = "/s"\nproxy-http = ""\nlease-seconds = 20\nnri-index = "10"\n')
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 4 options, all valid\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("lease-second = 20", "lease-second: this option does not exist; did you mean lease-"),
        ("lease-seconds = 1", "lease-seconds is not a whole number of at least 3"),
        ("cpu-policy-options = 'foo'", "cpu-policy-options: 'foo' is not one of align-by-socket"),
        ("hook-failure-policy = 'bogus'", "hook-failure-policy: 'bogus' has no '='"),
        ("listen = 'cri.sock'", "endpoint 'cri.sock' is not unix:///absolute/path"),
        ("nri-http = 'x'", "address 'x' is not HOST:PORT"),
        ("a =", "Invalid value"),
    ],
)
def test_a_file_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, problem: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(content)
    assert main(["config", "check", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("topolet: ")
    assert problem in printed.err
    assert len(printed.err.splitlines()) == 1
