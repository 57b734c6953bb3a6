from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.allocate.zoned.strategies import ZoneStrategy
from agent.model.schedulerargs import Rules, ScoringType
from agent.model.settings import Settings, SettingsError
from agent.scheduler import process
from agent.scheduler.readings import AGENT_LABELS


@pytest.mark.parametrize("lease_seconds", [3, 15, 600])
def test_a_bind_has_ended_when_another_may_begin(lease_seconds: int) -> None:
    times = process.lease_times(lease_seconds)
    limits = process.bind_limits(times)
    assert times.renew_seconds + limits.whole_seconds < lease_seconds


def test_without_a_file_the_proposal_scores() -> None:
    assert process.scheduler_args("").rules is Rules.PROPOSAL


@pytest.mark.parametrize(
    "text",
    [
        "kind: NodeNUMAResourceArgs\nscoringStrategy:\n  type: MostAllocated\n",
        '{"kind": "NodeNUMAResourceArgs", "scoringStrategy": {"type": "MostAllocated"}}',
    ],
)
def test_the_file_says_how_nodes_are_scored(tmp_path: Path, text: str) -> None:
    (tmp_path / "args").write_text(text)
    found = process.scheduler_args(str(tmp_path / "args"))
    assert (found.rules, found.node.type) == (Rules.KOORDINATOR, ScoringType.MOST_ALLOCATED)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "args: "),
        ("kind: Other", "kind"),
        ("kind: NodeNUMAResourceArgs\nscoringStrategy: {type: Best}", "scoringStrategy.type"),
        ("- a", "CPUOrchestrationPluginArgs"),
    ],
)
def test_what_is_wrong_with_the_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "args"
    path.write_text(text)
    with pytest.raises(SettingsError, match=f"scheduler-args-file {path}") as raised:
        process.scheduler_args(str(path))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [("", set()), ("a", {"a"}), (" a, b.c ,,", {"a", "b.c"}), (",", set())],
)
def test_names_of_clients(text: str, names: set[str]) -> None:
    assert process.client_names(text) == names


def test_the_agents_of_our_manifests_are_those_that_are_looked_for() -> None:
    assert process.agent_labels(Settings().agent_selector) == AGENT_LABELS
    assert process.agent_labels(" a=b, c= ,,") == {"a": "b", "c": ""}
    assert process.agent_labels("") == {}
    for text in ("a", "=b"):
        with pytest.raises(SettingsError, match=f"agent-selector: '{text}' is no KEY=VALUE"):
            process.agent_labels(text)


@pytest.mark.parametrize("strategy", ZoneStrategy)
def test_every_strategy_by_zones_is_an_option(strategy: ZoneStrategy) -> None:
    changed = msgspec.structs.replace(Settings(), zone_strategy=strategy.value)
    assert msgspec.convert(msgspec.to_builtins(changed), Settings).zone_strategy == strategy


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tls_certificate_file": "", "client_ca_file": "/ca"}, "client-ca-file"),
        ({"tls_certificate_file": "", "client_names": "a"}, "client-names"),
        ({"tls_certificate_file": "", "extender_address": "nowhere"}, "'nowhere'"),
        ({"tls_certificate_file": "", "scheduler_http": "nowhere"}, "'nowhere'"),
    ],
)
def test_settings_that_do_not_fit_each_other(changes: dict[str, str], said: str) -> None:
    """Who asks for clients' certificates must not get a port that is open to all."""
    settings = msgspec.structs.replace(Settings(scheduler_http=""), **changes)
    pages = dict.fromkeys(("/healthz", "/readyz", "/metrics"))
    with pytest.raises(SettingsError, match=said):
        process.doors(settings, pages)  # type: ignore[arg-type]
