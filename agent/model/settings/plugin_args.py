"""The configuration of the scheduler for CPUs, NUMA nodes and GPUs, as one value.

Two kinds, with their own keys and defaults: `CPUOrchestrationPluginArgs` (fine-grained CPU
orchestration proposal, Plugin Configuration) and `NodeNUMAResourceArgs` of Koordinator's plugin
(pkg/scheduler/apis/config/v1/types.go). Topolet adds the keys of `_Common` to both.
`zoneScoringStrategy` is for plain pods, like the `scoringStrategy` of NodeResourceTopologyMatch
(scheduler-plugins: apis/config/v1/types.go, NodeResourceTopologyMatchArgs).
`strictFullPCPUsOnly` selects the proposal's rules for nodes that allocate only whole cores.
`distributeAcrossNUMA` and `preferL3` are for the scheduler what `distribute-cpus-across-numa` and
`prefer-align-cpus-by-uncorecache` are for the kubelet. `deviceStrategy` and
`gpuShareUnsupportedModels` are in Koordinator's DeviceShareArgs."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final, Literal

import msgspec

from agent.model.cpu.policies import (
    NODE_STRATEGIES,
    ZONE_STRATEGIES,
    BindPolicy,
    GpuObjective,
    NumaPolicy,
    PlacementPolicy,
    Strategy,
)
from agent.model.objects import ObjectError, converted

Weights = dict[str, int]
"""By resource."""


class Measure(enum.StrEnum):
    """A criterion of a node's score: amounts of resources, or the number of NUMA nodes in use."""

    RESOURCES = "Resources"
    NUMA_NODES = "NUMANodes"


class Rules(enum.StrEnum):
    """The rules of scoring: those of the proposals, or those of Koordinator's plugin."""

    PROPOSAL = "CPUOrchestrationPluginArgs"
    KOORDINATOR = "NodeNUMAResourceArgs"


class ScoringStrategy(msgspec.Struct, frozen=True):
    """A way to score, and the resources that count."""

    type: Strategy
    weights: Weights


class ZoneScoring(msgspec.Struct, frozen=True):
    """The scoring for plain pods; a resource without a weight has weight 1."""

    type: Strategy = Strategy.LEAST_ALLOCATED
    weights: Weights = {}


class SchedulerArgs(msgspec.Struct, frozen=True):
    """The scheduler's configuration."""

    rules: Rules
    bind: BindPolicy
    """For pods without a bind policy: ConstrainedBurst concerns those that share CPUs, and the
    others have FullPCPUs."""
    numa_policy: NumaPolicy
    node: ScoringStrategy
    """Scores nodes."""
    numa: ScoringStrategy
    """Scores the sets of NUMA nodes of one node."""
    measures: frozenset[Measure]
    """A node's score is the mean of these."""
    gpu_objective: GpuObjective = GpuObjective.BANDWIDTH
    """Chooses between sets of GPUs of a node."""
    zones: ZoneScoring = ZoneScoring()
    """Scores nodes of plain pods."""
    prefer_l3: bool = False
    """Of equal CPUs, those that share an L3 cache are chosen."""
    distribute_across_numa: bool | None = None
    """Amounts on several NUMA nodes are split evenly, whatever the strategy; False: they fill one
    node after the other; None: they do so under MostAllocated."""
    devices: Strategy = Strategy.LEAST_ALLOCATED
    """Chooses between whole devices of a node."""
    gpu_shares: Strategy = Strategy.MOST_ALLOCATED
    """Chooses the card that gives a part of a GPU: under MostAllocated that is the one with the
    smallest free part, so that other cards stay whole."""
    unshared_gpus: dict[str, frozenset[str]] = {}
    """By vendor, the GPU models that are never divided, both as in the labels of nodes."""
    strict_full_pcpus_only: bool = False
    """Nodes that allocate only whole cores allocate them to Guaranteed, LSE and LSR pods, and come
    last for pods that prefer SpreadByPCPUs."""
    placement: PlacementPolicy | None = None
    """The policy that scores nodes instead, None without one."""


def decode(body: object) -> SchedulerArgs:
    """The value of a decoded file; missing fields have the kind's default. Raises ObjectError,
    which names the field."""
    kind = body.get("kind") if isinstance(body, dict) else None
    if kind == Rules.KOORDINATOR:
        return _koordinator(converted(body, kind, _NodeNumaResource))
    return _proposal(converted(body, Rules.PROPOSAL, _CpuOrchestration))


def defaults(kind: Rules) -> SchedulerArgs:
    """The values of a file that has nothing but its kind."""
    return decode({"kind": kind.value})


_CPU_AND_MEMORY: Final = {"cpu": 1, "memory": 1}
_MAX_WEIGHT: Final = 100
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Fields(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    pass


class _Resource(_Fields, frozen=True):
    name: _Name
    weight: Annotated[int, msgspec.Meta(ge=1, le=_MAX_WEIGHT)] = 1


class _Strategy(_Fields, frozen=True):
    type: Strategy | None = None
    resources: tuple[_Resource, ...] | None = None


class _MeasuredStrategy(_Strategy, frozen=True):
    measures: frozenset[Measure] | None = None


class _GpuModel(_Fields, frozen=True):
    vendor: _Name
    model: _Name


class _Common(_Fields, frozen=True):
    api_version: str = ""
    bind: BindPolicy = msgspec.field(default=BindPolicy.DEFAULT, name="defaultCPUBindPolicy")
    gpu_objective: GpuObjective = GpuObjective.BANDWIDTH
    zone_scoring_strategy: _Strategy = _Strategy()
    prefer_l3: bool | None = msgspec.field(default=None, name="preferL3")
    distribute_across_numa: bool | None = msgspec.field(default=None, name="distributeAcrossNUMA")
    device_strategy: Literal["LeastAllocated", "MostAllocated"] = "LeastAllocated"
    gpu_share_strategy: Literal["LeastAllocated", "MostAllocated"] = "MostAllocated"
    unshared_gpus: tuple[_GpuModel, ...] = msgspec.field(
        default=(), name="gpuShareUnsupportedModels"
    )
    strict: bool | None = msgspec.field(default=None, name="strictFullPCPUsOnly")
    placement: PlacementPolicy | None = None


class _CpuOrchestration(_Common, frozen=True, kw_only=True):
    kind: Literal["CPUOrchestrationPluginArgs"]
    numa_policy: NumaPolicy = msgspec.field(
        default=NumaPolicy.BEST_EFFORT, name="numaTopologyAlignmentPolicy"
    )
    scoring_strategy: _MeasuredStrategy | None = None
    numa_scoring_strategy: _Strategy | None = None


class _NodeNumaResource(_Common, frozen=True, kw_only=True):
    kind: Literal["NodeNUMAResourceArgs"]
    scoring_strategy: _Strategy | None = None
    numa_scoring_strategy: _Strategy | None = None


def _proposal(raw: _CpuOrchestration) -> SchedulerArgs:
    scoring = raw.scoring_strategy or _MeasuredStrategy()
    default = ScoringStrategy(Strategy.MOST_ALLOCATED, _CPU_AND_MEMORY)
    node = _strategy(Rules.PROPOSAL, "scoringStrategy", scoring, default)
    return SchedulerArgs(
        Rules.PROPOSAL,
        BindPolicy.FULL_PCPUS if raw.bind is BindPolicy.DEFAULT else raw.bind,
        raw.numa_policy,
        node,
        _strategy(Rules.PROPOSAL, "numaScoringStrategy", raw.numa_scoring_strategy, node),
        scoring.measures or frozenset(Measure),
        **_common(Rules.PROPOSAL, raw),
    )


def _koordinator(raw: _NodeNumaResource) -> SchedulerArgs:
    default = ScoringStrategy(Strategy.LEAST_ALLOCATED, _CPU_AND_MEMORY)
    node = _strategy(Rules.KOORDINATOR, "scoringStrategy", raw.scoring_strategy, default)
    return SchedulerArgs(
        Rules.KOORDINATOR,
        BindPolicy.FULL_PCPUS if raw.bind is BindPolicy.DEFAULT else raw.bind,
        NumaPolicy.NONE,
        node,
        _strategy(Rules.KOORDINATOR, "numaScoringStrategy", raw.numa_scoring_strategy, node),
        frozenset({Measure.RESOURCES}),
        **_common(Rules.KOORDINATOR, raw),
    )


def _common(kind: Rules, raw: _Common) -> dict[str, Any]:
    unshared: dict[str, frozenset[str]] = {}
    for each in raw.unshared_gpus:
        unshared[each.vendor] = unshared.get(each.vendor, frozenset()) | {each.model}
    return {
        "gpu_objective": raw.gpu_objective,
        "zones": _zones(kind, raw.zone_scoring_strategy),
        "prefer_l3": kind is Rules.PROPOSAL if raw.prefer_l3 is None else raw.prefer_l3,
        "distribute_across_numa": raw.distribute_across_numa,
        "devices": Strategy(raw.device_strategy),
        "gpu_shares": Strategy(raw.gpu_share_strategy),
        "unshared_gpus": unshared,
        "placement": raw.placement,
        "strict_full_pcpus_only": kind is Rules.PROPOSAL if raw.strict is None else raw.strict,
    }


def _strategy(
    kind: str, field: str, raw: _Strategy | None, default: ScoringStrategy
) -> ScoringStrategy:
    if raw is None:
        return default
    weights = _weights(kind, field, raw.resources) if raw.resources else default.weights
    return ScoringStrategy(
        _of_kind(kind, field, raw.type, NODE_STRATEGIES) or default.type, weights
    )


def _zones(kind: str, raw: _Strategy) -> ZoneScoring:
    field = "zoneScoringStrategy"
    type_ = _of_kind(kind, field, raw.type, ZONE_STRATEGIES) or Strategy.LEAST_ALLOCATED
    return ZoneScoring(type_, _weights(kind, field, raw.resources or ()))


def _of_kind(
    kind: str, field: str, type_: Strategy | None, known: tuple[Strategy, ...]
) -> Strategy | None:
    if type_ is not None and type_ not in known:
        raise ObjectError(kind, "", f"{field}.type: {type_} is not one of {', '.join(known)}")
    return type_


def _weights(kind: str, field: str, resources: tuple[_Resource, ...]) -> Weights:
    weights = {each.name: each.weight for each in resources}
    if len(weights) < len(resources):
        raise ObjectError(kind, "", f"{field}.resources: a resource is named twice")
    return weights
