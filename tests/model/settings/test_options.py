from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from agent.cli import options
from agent.model.settings.agent import AgentSettings
from agent.model.settings.frontends import NriSettings, ProxySettings
from agent.model.settings.options import Options, SettingsError, host_port, parse, socket_path
from agent.model.settings.options import options as fields
from agent.model.settings.scheduler import SchedulerSettings, WebhookSettings

PROCESSES = (AgentSettings, ProxySettings, NriSettings, SchedulerSettings, WebhookSettings)


def load(*words: str) -> AgentSettings:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser, AgentSettings)
    return options.load(parser.parse_args(words), AgentSettings)


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
        (b"staet-dir = 1", "unknown field `staet-dir`"),
        (b"state-dir = 1", "Expected `str`, got `int` - at `$.state-dir`"),
        (b"state_dir = 'a'", "unknown field `state_dir`"),
        (b"period-seconds = 'soon'", "$.period-seconds"),
        (b"period-seconds = 0", "> 0.0 - at `$.period-seconds`"),
        (b"period-seconds = nan", "$.period-seconds"),
        (b"hold-seconds = -1", "$.hold-seconds"),
        (b"hold-seconds = 1e9", "<= 60.0 - at `$.hold-seconds`"),
        (b"log-level = 'loud'", "$.log-level"),
        (b"[state-dir]\na = 1", "$.state-dir"),
        (b"state-dir =", "topolet.toml: "),
        (b"state-dir = '\xff'", "topolet.toml: "),
    ],
)
def test_error_in_the_file_names_the_option(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "topolet.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        load(f"--config={file}")
    assert reason in str(raised.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml: .*No such file"):
        load(f"--config={tmp_path}/none.toml")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--period-seconds=0"], "$.period-seconds"),
        (["--period-seconds=soon"], "$.period-seconds"),
        (["--log-level=LOUD"], "$.log-level"),
    ],
)
def test_error_in_a_flag_names_the_option(words: list[str], reason: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load(*words)
    assert reason in str(raised.value)


def test_one_file_has_the_options_of_all_processes(tmp_path: Path) -> None:
    file = tmp_path / "topolet.toml"
    file.write_text('proxy-http = ""\nlease-seconds = 20\nstate-dir = "/s"\n')
    assert load(f"--config={file}") == AgentSettings(state_dir="/s")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("lease-seconds = 1", "`int` >= 3 - at `$.lease-seconds`"),
        ("proxy-http = 1", "got `int` - at `$.proxy-http`"),
        ("lease-second = 20", "unknown field `lease-second`"),
    ],
)
def test_options_of_other_processes_are_checked_too(
    tmp_path: Path, content: str, reason: str
) -> None:
    file = tmp_path / "topolet.toml"
    file.write_text(content)
    with pytest.raises(SettingsError) as raised:
        load(f"--config={file}")
    assert reason in str(raised.value)


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
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        (":0", ("0.0.0.0", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_address(address: str, pair: tuple[str, int]) -> None:
    assert host_port(address) == pair


@pytest.mark.parametrize("address", ["", "80", "a", "a:", "a:b", "a:65536", "a:-1", "a:1.5"])
def test_invalid_address(address: str) -> None:
    with pytest.raises(SettingsError, match=f"address '{address}' is not HOST:PORT"):
        host_port(address)


@pytest.mark.parametrize("kind", PROCESSES)
def test_parse_takes_the_names_of_the_struct(kind: type[Options]) -> None:
    assert parse({each.encode_name: each.default for each in fields(kind)}, kind) == kind()
