"""The command `topolet`, and the modules that its processes load."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.__main__ import parser_of
from agent.cli import options
from agent.cli.commands import COMMANDS
from agent.cli.processes import PROXY
from agent.model.settings.agent import TopologySettings
from tests.cli.conftest import Topolet


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_no_command_lists_the_commands(topolet: Topolet) -> None:
    printed = topolet(code=2)
    assert printed.out == ""
    assert all(f"  {name} " in printed.err for name in COMMANDS)


def test_help_lists_every_command_and_each_has_its_own_help(topolet: Topolet) -> None:
    listed = " ".join(topolet("--help").out.split())
    for name, text in COMMANDS.items():
        assert f" {name} {text}" in listed
        command_help = topolet(name, "--help")
        assert command_help.err == ""
        assert command_help.out.startswith(f"usage: topolet {name}")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["nonsense", "--help"], 2, "invalid choice: 'nonsense'"),
        (["proxy", "--hold-seconds=soon"], 2, "hold-seconds"),
        (["proxy", "--config=/nowhere/x.toml"], 2, "/nowhere/x.toml"),
        (
            ["proxy", "--runtime-endpoint=a.sock"],
            2,
            "endpoint 'a.sock' is not unix:///absolute/path",
        ),
        (
            ["proxy", "--state-dir=/run/x", "--runtime-endpoint=unix:///run/x/cri.sock"],
            2,
            "runtime-endpoint is the proxy's own socket",
        ),
        (["agent", "--http="], 1, "not in a cluster (--kubeconfig names one, --standalone"),
        (["webhook", "--webhook-failure-policy=Perhaps"], 2, "webhook-failure-policy"),
        (["webhook", "--https=a:b", "--kubeconfig=/nowhere/x"], 1, "/nowhere/x"),
        (["scheduler", "--lease-seconds=1"], 2, "lease-seconds"),
        (["scheduler", "--kubeconfig=/nowhere/x"], 1, "/nowhere/x"),
        (["scheduler", "--scheduler-args-file=/nowhere/x"], 2, "scheduler-args-file /nowhere/x"),
        (["agent", "--standalone", "--period-seconds=0"], 2, "period-seconds"),
        (["agent", "--hook-failure-policy=bogus"], 2, "hook-failure-policy: 'bogus' has no '='"),
        (["agent", "--cpu-policy-options=foo=bar"], 2, "is not one of align-by-socket, "),
        (
            ["agent", "--cpu-policy=foo"],
            2,
            "--cpu-policy 'foo' is not one of dynamic, none, static",
        ),
        (["agent", "--gpu-actions=x"], 2, "gpu-actions: "),
        (["agent", "--colocation-features=x"], 2, "colocation-features: 'x': 'x' is none of "),
        (["agent", "--reserved-cpus=x"], 2, "reserved-cpus: "),
        (["agent", "--exclude=///"], 2, "exclude: "),
        (["agent", "--http=x:y"], 2, "address 'x:y' is not ADDRESS or ADDRESS:PORT"),
        (["agent", "--hook-failure-policy=Start=fail"], 2, "'Start=fail': hook"),
        (["nri", "--nri-socket=x"], 2, "endpoint 'x' is not unix:///absolute/path"),
        (["nri", "--http=9328"], 2, "is not ADDRESS or ADDRESS:PORT"),
        (["nri", "--hook-failure-policy=Start=fail"], 2, "hook-failure-policy"),
        (["preflight", "--cpu-policy-options=foo"], 2, "'foo' is not one of"),
        (["topology", "--config=/nowhere/x.toml"], 2, "/nowhere/x.toml: No such file"),
        (["kubelet-state", "--kubelet-dir=/nowhere"], 1, "kubelet-dir: /nowhere does not exist"),
        (["config", "check", "/nowhere/x.toml"], 2, "/nowhere/x.toml: No such file"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], code: int, reason: str, topolet: Topolet
) -> None:
    printed = topolet(*arguments, code=code)
    assert printed.out == ""
    assert reason in printed.err.splitlines()[-1]
    assert "Traceback" not in printed.err


def test_invalid_address_leaves_no_socket_behind(tmp_path: Path, topolet: Topolet) -> None:
    printed = topolet("proxy", f"--state-dir={tmp_path}", "--http=a:b", code=2)
    assert "address 'a:b' is not ADDRESS or ADDRESS:PORT" in printed.err
    assert not list(tmp_path.iterdir())


HEAVY = {
    "asyncio",
    "google.protobuf",
    "grpc",
    "http.server",
    "kubernetes",
    "prometheus_client",
    "pydantic",
    "urllib3",
    "yaml",
}
"""Modules that cost memory or start-up time, which the proxy must not load."""

FOR_SOME_ARGUMENTS = {"argparse", "urllib.parse", "zlib"}

LOADED = "import sys\n{}\nprint(*sys.modules)"


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (
            "import agent.__main__, agent.cli.processes, agent.proxy.daemon",
            HEAVY | FOR_SOME_ARGUMENTS,
        ),
        (
            "from agent.__main__ import main\ntry: main(['proxy', '--help'])\n"
            "except SystemExit: import agent.cli.processes",
            HEAVY,
        ),
        ("import agent.cli.top", {"rich", "curses", "textual", "asyncio"}),
    ],
    ids=["imports of the proxy", "help of the proxy", "imports of top"],
)
def test_heavy_modules_are_not_loaded(code: str, heavy: set[str]) -> None:
    done = python("-c", LOADED.format(code))
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert loaded & {"agent.cli.processes", "agent.cli.top"}
    assert not loaded & heavy


ARGUMENTS = st.sampled_from(
    [
        "--state-dir",
        "--state-dir=/x",
        "--state-dir=",
        "--config",
        "--conf",
        "--hold-seconds=1",
        "--help",
        "--hold-seconds",
        "--output",
        "--standalone",
        "/a",
        "-1",
        "--",
        "-",
        "",
        "a=b",
    ]
)


@given(st.lists(ARGUMENTS, max_size=5))
def test_plain_arguments_are_read_as_by_argparse(arguments: list[str]) -> None:
    plain = options.plain(arguments, PROXY.SETTINGS, ("standalone",))
    parser = argparse.ArgumentParser()
    parser.add_argument("--standalone", action="store_true")
    options.add_arguments(parser, PROXY.SETTINGS)
    if plain is not None:
        assert vars(plain) == vars(parser.parse_args(arguments))


def test_the_usual_arguments_of_a_proxy_are_plain() -> None:
    arguments = ["--state-dir", "/x", "--hold-seconds=2", "--config", "/etc/topolet.toml"]
    assert options.plain(arguments, PROXY.SETTINGS) is not None
    assert options.plain([*arguments, "--help"], PROXY.SETTINGS) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_the_usage_names_every_positional_argument(command: str) -> None:
    parser = parser_of(command)
    positional = [each for each in parser._actions if not each.option_strings]
    shown = [str(each.metavar or each.dest.upper()) for each in positional]
    assert [each for each in shown if each not in (parser.usage or "")] == []


@pytest.mark.parametrize(
    ("variable", "shown"),
    [
        (
            "TOPOLET_STATE_DIRS",
            "TOPOLET_STATE_DIRS: this option does not exist; did you mean TOPOLET_",
        ),
        ("TOPOLET_FOO", "TOPOLET_FOO: this option does not exist"),
        ("TOPOLET_STATE_DIR", ""),
        ("TOPOLET_LEASE_SECONDS", ""),  # of another process
        ("TOPOLET_SCHEDULER_SERVICE_HOST", ""),  # of a Service in the pod's namespace
        ("TOPOLET_SCHEDULER_PORT_9444_TCP_ADDR", ""),
        ("TOPOLET_SCHEDULER_SERVICE_PORT_HTTPS", ""),
    ],
)
def test_a_variable_that_is_no_option_is_named(variable: str, shown: str) -> None:
    found = list(options.unknown_variables(TopologySettings, [variable, "HOME"]))
    assert [each[: len(shown)] for each in found] == ([shown] if shown else [])


def test_a_command_names_variables_that_are_no_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, topolet: Topolet
) -> None:
    monkeypatch.setenv("TOPOLET_PERIOD", "1")
    error = topolet("audit", f"--state-dir={tmp_path}", code=1).err
    assert error.startswith("topolet: TOPOLET_PERIOD: this option does not exist")


@pytest.mark.parametrize("command", [[], ["doctor"], ["explain"], ["agent"]])
def test_help_has_the_width_of_the_variable_columns(
    command: list[str], monkeypatch: pytest.MonkeyPatch, topolet: Topolet
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = topolet(*command, "--help").out
    usage, _, rest = text.partition("\n\n")
    wide = [line for line in rest.splitlines() if len(line) > 40 and "  " in line.strip()]
    wide += [line for line in rest.splitlines() if len(line) > 40 and not line.startswith("  -")]
    assert (usage[:6], wide) == ("usage:", [])


@pytest.mark.parametrize("words", [["completion", "bash"], ["agent", "--help"]])
def test_a_reader_that_closes_early_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "agent", *words],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_agent_is_the_command_and_has_a_version() -> None:
    assert python("-m", "agent", "--version").stdout == f"topolet {metadata.version('topolet')}\n"
