from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Topolet


def test_a_valid_file_of_all_processes(tmp_path: Path, topolet: Topolet) -> None:
    path = tmp_path / "config.toml"
    path.write_text('state-dir = "/s"\nhttp = ""\nlease-seconds = 20\n')
    assert topolet("config", "check", str(path)).out == f"{path}: 3 options, all valid\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("lease-second = 20", "lease-second: this option does not exist; did you mean lease-"),
        ("lease-seconds = -1", "lease-seconds is not a whole number of at least 0"),
        ("cpu-policy-options = 'foo'", "cpu-policy-options: 'foo' is not one of align-by-socket"),
        ("hook-failure-policy = 'bogus'", "hook-failure-policy: 'bogus' has no '='"),
        ("nri-socket = 'nri.sock'", "endpoint 'nri.sock' is not unix:///absolute/path"),
        ("http = 'a:b'", "address 'a:b' is not ADDRESS or ADDRESS:PORT"),
        ("a =", "Invalid value"),
    ],
)
def test_a_file_with_an_error(tmp_path: Path, topolet: Topolet, content: str, problem: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(content)
    printed = topolet("config", "check", str(path), code=2)
    assert printed.out == ""
    assert printed.err.startswith("topolet: ")
    assert problem in printed.err
    assert len(printed.err.splitlines()) == 1


def test_each_error_of_a_file_is_reported(tmp_path: Path, topolet: Topolet) -> None:
    path = tmp_path / "config.toml"
    path.write_text("lease-second = 20\nlease-seconds = -1\nhttp = 3\nperiod-seconds = 'x'\n")
    assert [
        line.split(": ")[2].split(" ")[0]
        for line in topolet("config", "check", str(path), code=2).err.splitlines()
    ] == [
        "lease-second",
        "lease-seconds",
        "http",
        "period-seconds",
    ]
    path.write_text("cpu-policy-options = 'foo'\nnri-socket = 'nri.sock'\nhttp = 'a:b'\n")
    assert len(topolet("config", "check", str(path), code=2).err.splitlines()) == 3


VALUES = """
pools:
- name: a
  settings: {period-seconds: 1, cpu-policy: static, reserved-cpus: 3, devices: no}
  canary: {settings: {cpu-policy-options: full-pcpus-only}}
- {}
scheduler: {enabled: true, settings: {lease-seconds: 20}}
"""


def test_the_settings_in_values_of_the_chart(tmp_path: Path, topolet: Topolet) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(VALUES)
    assert (
        topolet("config", "check", "--chart", str(path)).out == f"{path}: 10 options, all valid\n"
    )


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        (
            "pools: [{settings: {period-seconds: x, cpu-policy: sttic, http: x, devicess: 1}}]",
            [
                "pools[0].settings.period-seconds is not a number greater than 0",
                "pools[0].settings.cpu-policy is not one of",
                "pools[0].settings.http: the chart sets this option itself",
                "pools[0].settings.devicess: this option does not exist; did you mean devices?",
            ],
        ),
        (
            "pools: [{}, {canary: {settings: {cpu-policy-options: foo}}}]",
            ["pools[1].canary.settings: cpu-policy-options: 'foo' is not one of"],
        ),
        (
            "scheduler: {settings: {lease-seconds: -1}}",
            ["scheduler.settings.lease-seconds is not a whole number of at least 0"],
        ),
        ("pools: {}", ["pools: it is not a list"]),
        ("pools: [1]", ["pools[0]: it is not a mapping"]),
        ("- a", ["the file: it is not a mapping"]),
        ("a: [", ["is not YAML: line 2, column 1"]),
    ],
)
def test_values_of_the_chart_with_errors(
    tmp_path: Path, topolet: Topolet, content: str, problems: list[str]
) -> None:
    """All of them are named."""
    path = tmp_path / "values.yaml"
    path.write_text(content)
    lines = topolet("config", "check", "--chart", str(path), code=2).err.splitlines()
    assert len(lines) == len(problems)
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"topolet: {path}: {problem}")
    assert "/none: No such file" in topolet("config", "check", "--chart", "/none", code=2).err
