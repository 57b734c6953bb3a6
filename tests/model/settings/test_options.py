from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from agent.cli import options
from agent.model.settings.agent import AgentSettings
from agent.model.settings.frontends import NriGuardSettings, NriSettings, ProxySettings
from agent.model.settings.options import (
    Options,
    SettingsError,
    host_port,
    pages_address,
    socket_path,
)
from agent.model.settings.options import options as fields
from agent.model.settings.scheduler import SchedulerSettings, WebhookSettings

PROCESSES = (
    AgentSettings,
    ProxySettings,
    NriSettings,
    NriGuardSettings,
    SchedulerSettings,
    WebhookSettings,
)


def load(*arguments: str) -> AgentSettings:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser, AgentSettings)
    return options.load(parser.parse_args(arguments), AgentSettings)


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "topolet.toml"
    file.write_text('state-dir = "/s"\nperiod-seconds = 2\nhold-seconds = 0.25\n')
    loaded = load(f"--config={file}", "--period-seconds=3.5")
    assert (loaded.state_dir, loaded.period_seconds, loaded.hold_seconds) == ("/s", 3.5, 0.25)
    assert loaded.node_name == AgentSettings().node_name
    assert load() == AgentSettings()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"staet-dir = 1", "staet-dir: this option does not exist; did you mean state-dir?"),
        (b"state-dir = 1", "state-dir is not a text"),
        (b"state_dir = 'a'", "state_dir: this option does not exist; did you mean state-dir?"),
        (b"[agent]\na = 1", "agent: this option does not exist"),
        (
            b"period-seconds = 'soon'",
            "period-seconds is not a number greater than 0 and of at most",
        ),
        (b"period-seconds = 0", "period-seconds is not a number greater than 0 and of at most 600"),
        (b"period-seconds = nan", "period-seconds is not a number"),
        (b"hold-seconds = -1", "hold-seconds is not a number of at least 0 and of at most 60"),
        (b"hold-seconds = 1e9", "hold-seconds is not a number of at least 0 and of at most 60"),
        (b"log-level = 'loud'", "log-level is not one of debug, error, info, warning"),
        (b"devices = 'maybe'", "devices is not true or false"),
        (b"gpu-cdi-kind = 'gpu'", "gpu-cdi-kind is not a value like nvidia.com/gpu"),
        (b"[state-dir]\na = 1", "state-dir is not a text"),
        (b"lease-seconds = -1", "lease-seconds is not a whole number of at least 0"),
        (b"nri-socket = 1", "nri-socket is not a text"),
        (b"lease-second = 20", "lease-second: this option does not exist; did you mean lease-"),
        (b"state-dir =", ""),
        (b"state-dir = '\xff'", ""),
    ],
)
def test_error_in_the_file_names_the_option(tmp_path: Path, content: bytes, reason: str) -> None:
    """Options of other processes are checked too."""
    file = tmp_path / "topolet.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        load(f"--config={file}")
    assert str(raised.value).startswith(f"{file}: {reason}")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml: No such file"):
        load(f"--config={tmp_path}/none.toml")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--period-seconds=0"], "--period-seconds '0' is not a number greater than 0"),
        (["--period-seconds=soon"], "--period-seconds 'soon' is not a number greater than 0"),
        (["--log-level=LOUD"], "--log-level 'LOUD' is not one of debug, error, info, warning"),
        (["--devices=maybe"], "--devices 'maybe' is not true or false"),
    ],
)
def test_error_in_a_flag_names_the_option(arguments: list[str], reason: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(*arguments)
    assert reason in str(raised.value)


def test_one_file_has_the_options_of_all_processes(tmp_path: Path) -> None:
    file = tmp_path / "topolet.toml"
    file.write_text('http = "192.0.2.1"\nlease-seconds = 20\nstate-dir = "/s"\n')
    assert load(f"--config={file}") == AgentSettings(state_dir="/s", http="192.0.2.1")


def test_variables_override_the_file_and_flags_override_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "topolet.toml"
    file.write_text('state-dir = "/file"\nperiod-seconds = 2\ndevices = true\n')
    monkeypatch.setenv("TOPOLET_CONFIG", str(file))
    monkeypatch.setenv("TOPOLET_STATE_DIR", "/variable")
    monkeypatch.setenv("TOPOLET_DEVICES", "false")
    monkeypatch.setenv("TOPOLET_PERIOD_SECONDS", "3")
    loaded = load("--period-seconds=4")
    assert (loaded.state_dir, loaded.period_seconds, loaded.devices) == ("/variable", 4, False)
    monkeypatch.setenv("TOPOLET_PERIOD_SECONDS", "secret")
    with pytest.raises(SettingsError, match=r"^TOPOLET_PERIOD_SECONDS is not a number [^']*$"):
        load()


def test_the_default_file_is_read_if_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    monkeypatch.setattr(options, "CONFIG", str(file))
    assert load().state_dir == AgentSettings().state_dir
    file.write_text('state-dir = "/default"\n')
    assert load().state_dir == "/default"
    file.write_text("state-dir = 1\n")
    with pytest.raises(SettingsError, match=f"^{file}: state-dir is not a text$"):
        load()


@pytest.mark.parametrize(
    ("arguments", "devices"),
    [
        ((), True),
        (("--no-devices",), False),
        (("--devices=false",), False),
        (("--no-devices", "--devices"), True),
        (("--devices", "--http="), True),
    ],
)
def test_an_option_that_is_true_or_false_has_two_flags(
    arguments: tuple[str, ...], devices: bool
) -> None:
    assert load(*arguments).devices is devices
    fast = options.plain(arguments, AgentSettings)
    assert fast is None or options.load(fast, AgentSettings).devices is devices


@pytest.mark.parametrize("kind", PROCESSES)
def test_the_help_has_every_option_and_its_unit(kind: type[Options]) -> None:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser, kind)
    text = " ".join(parser.format_help().split())
    for each in fields(kind):
        assert f"--{each.encode_name} " in text
        if each.name.endswith("_seconds"):
            assert f"--{each.encode_name} SECONDS" in text


def test_processes_share_the_type_and_default_of_an_option() -> None:
    seen: dict[str, tuple[object, object]] = {}
    for each in (each for kind in PROCESSES for each in fields(kind)):
        assert seen.setdefault(each.name, (each.type, each.default)) == (each.type, each.default)


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("unix:///run/a.sock", "/run/a.sock"), ("/run/a.sock", "/run/a.sock")],
)
def test_endpoint(endpoint: str, path: str) -> None:
    assert socket_path(endpoint) == path


@pytest.mark.parametrize("endpoint", ["", "run/a.sock", "unix://run/a", "tcp://1.2.3.4:5"])
def test_invalid_endpoint(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="is not unix:///absolute/path"):
        socket_path(endpoint)


@pytest.mark.parametrize(
    ("address", "pair"),
    [
        ("", None),
        ("127.0.0.1", ("127.0.0.1", 9)),
        ("[::1]", ("::1", 9)),
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":0", ("0.0.0.0", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_without_a_port_has_that_of_its_process(
    address: str, pair: tuple[str, int] | None
) -> None:
    assert pages_address(address, 9) == pair
    assert pair is None or pair[1] == 9 or host_port(address) == pair


@pytest.mark.parametrize(
    "address", ["", "80", "a", "80:80", "a:", "a:b", "a:65536", "a:-1", "a:1.5"]
)
def test_invalid_address(address: str) -> None:
    with pytest.raises(SettingsError, match=f"address '{address}' is not ADDRESS or ADDRESS:PORT"):
        host_port(address)
