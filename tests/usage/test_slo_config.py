"""Our own configuration of strategies. Koordinator's answers to it are in the vectors
koordinator-nodeslo."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.usage import slo_config
from agent.usage.slo_config import BANDWIDTH_ANNOTATION, SloConfig, parsed

GOLD = {"matchLabels": {"pool": "gold"}}


def config(**keys: Any) -> SloConfig:
    """A configuration without faults; the names of keys with underscores."""
    texts = {name.replace("_", "-"): json.dumps(value).encode() for name, value in keys.items()}
    parsed_config, troubles = parsed(texts, SloConfig())
    assert troubles == ()
    return parsed_config


BURST = config(
    cpu_burst_config={
        "clusterStrategy": {"policy": "auto"},
        "nodeStrategies": [
            {"name": "gold", "nodeSelector": GOLD, "policy": "none"},
            {"nodeSelector": {}, "cpuBurstPercent": 50},
        ],
    },
    host_application_config={
        "applications": [{"name": "a"}],
        "nodeConfigs": [{"nodeSelector": GOLD, "applications": []}],
    },
)


@pytest.mark.parametrize(
    ("labels", "policy", "percent", "origin", "applications"),
    [
        ({}, "auto", 50, "pool [1]", ["a"]),
        ({"pool": "gold"}, "none", 1000, "pool gold", []),
    ],
)
def test_the_first_pool_that_matches_has_the_last_word(
    labels: dict[str, str], policy: str, percent: int, origin: str, applications: list[str]
) -> None:
    spec, origins, troubles = slo_config.spec(BURST, labels, {})
    burst = spec["cpuBurstStrategy"]
    assert (burst["policy"], burst["cpuBurstPercent"]) == (policy, percent)
    assert origins["cpuBurstStrategy"] == origin
    assert [application["name"] for application in spec["hostApplications"]] == applications
    assert "systemStrategy" not in origins
    assert troubles == ()


def test_the_bandwidth_of_a_node_overrides_that_of_all() -> None:
    system = config(system_config={"clusterStrategy": {"totalNetworkBandwidth": "1G"}})
    spec, origins, _ = slo_config.spec(system, {}, {BANDWIDTH_ANNOTATION: "5G"})
    assert spec["systemStrategy"]["totalNetworkBandwidth"] == "5G"
    assert origins == {"systemStrategy": "cluster strategy"}
    spec, origins, _ = slo_config.spec(SloConfig(), {}, {BANDWIDTH_ANNOTATION: "5G"})
    assert origins == {"systemStrategy": f"annotation {BANDWIDTH_ANNOTATION}"}
    spec, origins, (trouble,) = slo_config.spec(system, {}, {BANDWIDTH_ANNOTATION: "much"})
    assert "systemStrategy" not in spec.keys() | origins.keys()
    assert trouble.startswith(f"annotation {BANDWIDTH_ANNOTATION}: ")


@pytest.mark.parametrize(
    ("key", "text", "trouble"),
    [
        ("cpu-burst-config", "{", "cpu-burst-config: is not JSON"),
        (
            "cpu-burst-config",
            '{"nodeStrategies": [{"cpuBurstPercent": 0}]}',
            "`$.nodeStrategies[0].cpuBurstPercent`",
        ),
        (
            "resource-qos-config",
            '{"clusterStrategy": {"beClass": {"cpuQOS": {"groupIdentity": 9}}}}',
            "`$.clusterStrategy.beClass.cpuQOS.groupIdentity`",
        ),
        (
            "host-application-config",
            '{"applications": [{"qos": "XL"}]}',
            "`$.applications[0].qos`",
        ),
    ],
)
def test_a_key_with_a_bad_value_keeps_what_it_had(key: str, text: str, trouble: str) -> None:
    parsed_config, (fault,) = parsed({key: text.encode()}, BURST)
    assert fault.startswith(f"{key}: ")
    assert trouble in fault
    of_key = key == "cpu-burst-config"
    assert (
        parsed_config.strategies["cpu-burst-config"] == BURST.strategies["cpu-burst-config"]
    ) is of_key
    assert (parsed_config.applications == BURST.applications) is (key == "host-application-config")


@pytest.mark.parametrize(
    "selector",
    [
        3,
        {"matchLabels": {"a": 1}},
        {"matchExpressions": [{"key": "a", "operator": "In"}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]},
    ],
)
def test_a_selector_that_is_invalid_matches_nothing_and_is_named(selector: Any) -> None:
    pools = {"nodeStrategies": [{"nodeSelector": selector, "policy": "auto"}]}
    nodes = {"nodeConfigs": [{"nodeSelector": selector, "applications": [{"name": "a"}]}]}
    keys = {"cpu-burst-config": pools, "host-application-config": nodes}
    texts = {key: json.dumps(value).encode() for key, value in keys.items()}
    parsed_config, troubles = parsed(texts, SloConfig())
    assert [trouble.partition("Selector: ")[0] for trouble in troubles] == [
        "cpu-burst-config: nodeStrategies[0].node",
        "host-application-config: nodeConfigs[0].node",
    ]
    spec, origins, _ = slo_config.spec(parsed_config, {"a": "b"}, {})
    assert (spec["cpuBurstStrategy"]["policy"], origins) == ("none", {})


def test_deep_nesting_is_a_fault_and_the_former_strategies_stay() -> None:
    deep = b'{"clusterStrategy":' + b'{"x":' * 600 + b"1" + b"}" * 601
    kept, troubles = parsed({"cpu-burst-config": deep}, BURST)
    assert troubles == ("cpu-burst-config: is nested too deeply",)
    assert kept.strategies["cpu-burst-config"] is BURST.strategies["cpu-burst-config"]
