"""The strategies in force and their origins."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agent.model.bounds import JsonError
from agent.model.node_slo import NodeSlo
from agent.model.objects import ObjectError
from agent.usage import strategies
from agent.usage.slo_config import SloConfig, parsed
from agent.usage.strategies import Strategies


def node_slo(**spec: object) -> bytes:
    return json.dumps({"metadata": {"name": "n"}, "spec": spec}).encode()


def test_a_section_comes_from_the_object_only_if_it_is_valid() -> None:
    text = node_slo(
        cpuBurstStrategy={"policy": "auto"},
        systemStrategy={"watermarkScaleFactor": 401},
        resourceQOSStrategy=None,
        extensions={"any": 1},
    )
    in_force = strategies.of_object(text)
    assert in_force.origins == {"cpuBurstStrategy": "NodeSLO"}
    assert in_force.slo.cpu_burst_strategy.policy == "auto"
    assert [trouble[: trouble.index("Factor")] for trouble in in_force.troubles] == [
        "NodeSLO n: spec.systemStrategy.watermarkScale"
    ]


def test_an_object_without_a_spec_has_the_defaults() -> None:
    assert strategies.of_object(b'{"metadata": {"name": "n"}}') == Strategies()
    assert strategies.of_object(b'{"spec": 3}').slo == NodeSlo()
    with pytest.raises(ObjectError, match=r"^NodeSLO "):
        strategies.of_object(b"{")


def test_our_configuration_names_its_pools() -> None:
    pool = {"name": "a", "nodeSelector": {}, "cpuSuppressThresholdPercent": 50, "enable": True}
    key = "resource-threshold-config"
    config, _ = parsed({key: json.dumps({"nodeStrategies": [pool]}).encode()}, SloConfig())
    in_force = strategies.of_config(config, {}, {})
    assert in_force.origins == {"resourceUsedThresholdWithBE": "pool a"}
    assert in_force.slo.resource_used_threshold_with_be.cpu_suppress_threshold_percent == 50


def test_the_file_has_all_of_them(tmp_path: Path) -> None:
    slo = node_slo(
        resourceQOSStrategy={"beClass": {"blkioQOS": {"blocks": [{"name": "a"}]}}},
        hostApplications=[{"name": "a", "qos": "LS", "priority": "koord-prod"}],
    )
    written = strategies.of_object(slo)
    path = tmp_path / "strategies.json"
    path.write_bytes(msgspec.json.encode(written))
    assert strategies.read(str(path)) == written
    path.write_text("{")
    with pytest.raises(JsonError):
        strategies.read(str(path))
