"""The file that configures the scheduler for CPUs and NUMA nodes: kinds, defaults, errors."""

from __future__ import annotations

from typing import Any

import pytest

from agent.model.cpu.policies import BindPolicy, GpuObjective, NumaPolicy, PlacementPolicy, Strategy
from agent.model.objects import ObjectError
from agent.model.settings.plugin_args import (
    Measure,
    Rules,
    SchedulerArgs,
    ScoringStrategy,
    ZoneScoring,
    decode,
    defaults,
)

EVEN = {"cpu": 1, "memory": 1}
MOST = ScoringStrategy(Strategy.MOST_ALLOCATED, EVEN)
LEAST = ScoringStrategy(Strategy.LEAST_ALLOCATED, EVEN)
PROPOSAL = {"kind": "CPUOrchestrationPluginArgs"}
KOORDINATOR = {"kind": "NodeNUMAResourceArgs"}


def test_the_proposals_defaults() -> None:
    assert defaults(Rules.PROPOSAL) == SchedulerArgs(
        Rules.PROPOSAL,
        BindPolicy.FULL_PCPUS,
        NumaPolicy.BEST_EFFORT,
        MOST,
        MOST,
        frozenset({Measure.RESOURCES, Measure.NUMA_NODES}),
        prefer_l3=True,
        strict_full_pcpus_only=True,
    )


def test_koordinators_defaults() -> None:
    assert defaults(Rules.KOORDINATOR) == SchedulerArgs(
        Rules.KOORDINATOR,
        BindPolicy.FULL_PCPUS,
        NumaPolicy.NONE,
        LEAST,
        LEAST,
        frozenset({Measure.RESOURCES}),
    )


@pytest.mark.parametrize("kind", [PROPOSAL, KOORDINATOR])
def test_the_objective_for_gpus(kind: dict[str, str]) -> None:
    assert decode(kind).gpu_objective is GpuObjective.BANDWIDTH
    assert decode({**kind, "gpuObjective": "besteffort"}).gpu_objective is GpuObjective.BESTEFFORT
    with pytest.raises(ObjectError, match="gpuObjective: Invalid enum value 'fastest'"):
        decode({**kind, "gpuObjective": "fastest"})


@pytest.mark.parametrize("kind", [PROPOSAL, KOORDINATOR])
def test_the_order_of_cpus_and_devices(kind: dict[str, str]) -> None:
    args = decode(kind)
    assert (args.prefer_l3, args.distribute_across_numa) == (kind is PROPOSAL, None)
    assert (args.devices, args.unshared_gpus) == (Strategy.LEAST_ALLOCATED, {})
    assert args.gpu_shares is Strategy.MOST_ALLOCATED
    models = [
        {"vendor": "nvidia", "model": "T4"},
        {"vendor": "huawei", "model": "910B"},
        {"vendor": "nvidia", "model": "P4"},
    ]
    args = decode(
        {
            **kind,
            "preferL3": True,
            "distributeAcrossNUMA": False,
            "deviceStrategy": "MostAllocated",
            "gpuShareStrategy": "LeastAllocated",
            "gpuShareUnsupportedModels": models,
        }
    )
    assert (args.prefer_l3, args.distribute_across_numa) == (True, False)
    assert args.devices is Strategy.MOST_ALLOCATED
    assert args.gpu_shares is Strategy.LEAST_ALLOCATED
    assert args.unshared_gpus == {
        "nvidia": frozenset({"T4", "P4"}),
        "huawei": frozenset({"910B"}),
    }


def test_the_rules_for_nodes_with_full_pcpus_only() -> None:
    """By default each kind of file has the rules of its origin."""
    assert decode(PROPOSAL).strict_full_pcpus_only
    assert not decode(KOORDINATOR).strict_full_pcpus_only
    for kind in (PROPOSAL, KOORDINATOR):
        for value in (True, False):
            args = decode({**kind, "strictFullPCPUsOnly": value})
            assert args.strict_full_pcpus_only is value


@pytest.mark.parametrize("kind", [PROPOSAL, KOORDINATOR])
@pytest.mark.parametrize("policy", BindPolicy)
def test_the_default_bind_policy_has_each_of_its_four_values(
    kind: dict[str, str], policy: BindPolicy
) -> None:
    args = decode({**kind, "defaultCPUBindPolicy": policy.value})
    assert args.bind is (BindPolicy.FULL_PCPUS if policy is BindPolicy.DEFAULT else policy)


def test_a_complete_file() -> None:
    weighted = {"resources": [{"name": "cpu", "weight": 3}, {"name": "nvidia.com/gpu"}]}
    args = decode(
        {
            **PROPOSAL,
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "defaultCPUBindPolicy": "SpreadByPCPUs",
            "numaTopologyAlignmentPolicy": "Restricted",
            "scoringStrategy": {
                "type": "BalancedAllocation",
                "measures": ["NUMANodes"],
                **weighted,
            },
            "numaScoringStrategy": {"type": "LeastAllocated"},
        }
    )
    weights = {"cpu": 3, "nvidia.com/gpu": 1}
    assert args == SchedulerArgs(
        Rules.PROPOSAL,
        BindPolicy.SPREAD_BY_PCPUS,
        NumaPolicy.RESTRICTED,
        ScoringStrategy(Strategy.BALANCED_ALLOCATION, weights),
        ScoringStrategy(Strategy.LEAST_ALLOCATED, weights),
        frozenset({Measure.NUMA_NODES}),
        prefer_l3=True,
        strict_full_pcpus_only=True,
    )


def test_each_of_koordinators_strategies_has_its_own_weights() -> None:
    strategy = {"type": "MostAllocated", "resources": [{"name": "memory", "weight": 5}]}
    args = decode({**KOORDINATOR, "numaScoringStrategy": strategy})
    assert args.node == LEAST
    assert args.numa == ScoringStrategy(Strategy.MOST_ALLOCATED, {"memory": 5})


@pytest.mark.parametrize("kind", [PROPOSAL, KOORDINATOR])
def test_the_strategy_of_nodes_is_the_default_of_numa_nodes(kind: dict[str, str]) -> None:
    args = decode({**kind, "scoringStrategy": {"type": "MostAllocated"}})
    assert args.numa == args.node == ScoringStrategy(Strategy.MOST_ALLOCATED, LEAST.weights)
    assert decode(kind).numa == decode(kind).node


@pytest.mark.parametrize("kind", [PROPOSAL, KOORDINATOR])
def test_the_zone_strategy_of_pods_without_koordinator_labels(kind: dict[str, str]) -> None:
    assert decode(kind).zones == ZoneScoring(Strategy.LEAST_ALLOCATED, {})
    strategy = {"type": "LeastNUMANodes", "resources": [{"name": "memory", "weight": 5}]}
    args = decode({**kind, "zoneScoringStrategy": strategy})
    assert args.zones == ZoneScoring(Strategy.LEAST_NUMA_NODES, {"memory": 5})
    assert args.node == decode(kind).node


@pytest.mark.parametrize(
    ("body", "strategy"),
    [
        (None, "Expected `object`"),
        ({}, "kind"),
        ({"kind": "KubeSchedulerConfiguration"}, "kind"),
        ({**PROPOSAL, "defaultCPUBindPolicy": "Sideways"}, "defaultCPUBindPolicy: "),
        ({**PROPOSAL, "defaultCPUBindPolicy": "None"}, "defaultCPUBindPolicy: "),
        ({**PROPOSAL, "numaTopologyAlignmentPolicy": 1}, "numaTopologyAlignmentPolicy: "),
        ({**PROPOSAL, "scoringStrategy": {"type": "Best"}}, "scoringStrategy.type: "),
        ({**PROPOSAL, "scoringStrategy": {"measures": ["CPUs"]}}, "scoringStrategy.measures[0]: "),
        (
            {**PROPOSAL, "scoringStrategy": {"resources": [{"name": "cpu", "weight": 0}]}},
            "scoringStrategy.resources[0].weight: ",
        ),
        (
            {**KOORDINATOR, "numaScoringStrategy": {"resources": [{"name": "cpu", "weight": 101}]}},
            "numaScoringStrategy.resources[0].weight: ",
        ),
        ({**PROPOSAL, "scoringStrategy": {"resources": [{"name": ""}]}}, "resources[0].name: "),
        (
            {**PROPOSAL, "scoringStrategy": {"resources": [{"name": "cpu"}, {"name": "cpu"}]}},
            "scoringStrategy.resources: a resource is named twice",
        ),
        ({**PROPOSAL, "scoringStrategie": {}}, "scoringStrategie"),
        ({**KOORDINATOR, "zoneScoringStrategy": {"type": "Best"}}, "zoneScoringStrategy.type: "),
        (
            {**KOORDINATOR, "gpuShareUnsupportedModels": [{"vendor": "nvidia"}]},
            "gpuShareUnsupportedModels",
        ),
        ({**PROPOSAL, "deviceStrategy": "BalancedAllocation"}, "deviceStrategy: "),
        ({**PROPOSAL, "preferL3": 1}, "preferL3: "),
        (
            {**PROPOSAL, "zoneScoringStrategy": {"resources": [{"name": "cpu"}, {"name": "cpu"}]}},
            "zoneScoringStrategy.resources: a resource is named twice",
        ),
        (
            {**KOORDINATOR, "numaTopologyAlignmentPolicy": "Restricted"},
            "numaTopologyAlignmentPolicy",
        ),
    ],
)
def test_the_invalid_field_is_named(body: Any, strategy: str) -> None:
    with pytest.raises(ObjectError) as caught:
        decode(body)
    assert strategy in str(caught.value)


@pytest.mark.parametrize("kind", Rules, ids=lambda each: each.value)
def test_a_placement(kind: Rules) -> None:
    body = {"kind": kind.value}
    assert decode(body).placement is None
    assert decode({**body, "placement": "Residual"}).placement is PlacementPolicy.RESIDUAL
    with pytest.raises(ObjectError, match="placement: Invalid enum value 'Random'"):
        decode({**body, "placement": "Random"})
