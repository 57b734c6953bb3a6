"""The declared differences from Koordinator's NodeNUMAResource.

Each difference is a rule of Koordinator that is wrong. It is expressed as a change of the case, of
the node's allocation, of the trials of its NUMA nodes, or of the answer. A case has the difference
only if Topolet gives exactly Koordinator's answer under that rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

import msgspec

from agent.allocate.accumulator import CpuExclusivity
from agent.allocate.node_allocation import Amounts, NodeAllocation, TopologyOptions
from agent.allocate.node_allocator import cpus
from agent.allocate.node_allocator.cpus import CpuOffer, Trials
from agent.allocate.policies_in_force import InForce
from agent.allocate.refusal import Refusal
from agent.allocate.steps import Steps
from agent.model.cpu.policies import (
    BIND_LABEL,
    NUMA_LABEL,
    STRATEGY_LABEL,
    BindPolicy,
    NumaPolicy,
)
from agent.model.pod.resource_request import ResourceRequest
from conformance.files import Difference

Case = Mapping[str, Any]

_NO_CPU: Final[Mapping[int, int]] = MappingProxyType({})

_REQUIRED: Final = "requiredCPUBindPolicy"
_EXCLUSIVE: Final = "preferredCPUExclusivePolicy"
_READ_POLICIES: Final = ("BestEffort", "Restricted", "SingleNUMANodePodLevel")


def _unchanged(case: Case) -> Case:
    return case


def _spelled(case: Case) -> bool:
    return any(policy not in _READ_POLICIES for policy in case.get("topologyPolicies", ()))


def _without_policies(case: Case) -> Case:
    return {**case, "topologyPolicies": []}


def _single_machine(case: Case) -> bool:
    return len(case["zones"]) == 1 and NumaPolicy.SINGLE_NUMA_NODE in str(_policies(case))


def _policies(case: Case) -> list[Any]:
    own = case["pod"].get("numaTopologySpec") or {}
    labels = case.get("nodeLabels", {})
    return [*labels.values(), *case.get("topologyPolicies", ()), *own.values()]


def _be_bound(case: Case) -> bool:
    forced = case.get("nodeLabels", {}).get(BIND_LABEL, "None") != "None" or bool(
        case.get("kubelet", {}).get("options")
    )
    return forced and case["pod"].get("qos") == "BE"


def _as_ls(case: Case) -> Case:
    return {**case, "pod": {**case["pod"], "qos": "LS"}}


def _no_cpus(case: Case) -> bool:
    return bool(case.get("noCPUTopology"))


def _without_allocations(case: Case) -> Case:
    return {**case, "allocated": [{"requests": each["requests"]} for each in case["allocated"]]}


def _unrecorded(case: Case) -> bool:
    held = [each.get("resourceStatus", {}) for each in case["allocated"]]
    return any("cpuset" in each and "numaNodeResources" not in each for each in held)


def _recorded(case: Case) -> dict[int, set[str]]:
    """The resources that pods recorded, by NUMA node."""
    names: dict[int, set[str]] = {}
    for pod in case["allocated"]:
        for part in pod.get("resourceStatus", {}).get("numaNodeResources", ()):
            names.setdefault(part["node"], set()).update(part["resources"])
    return names


def _uncounted(case: Case) -> bool:
    return _with_nothing(case) != case


def _with_nothing(case: Case) -> Case:
    """The case with an amount of 0 for each resource that pods recorded and the zone does not
    report."""
    named = _recorded(case)
    zones = [
        {
            **zone,
            "resources": {
                **dict.fromkeys(named.get(zone["node"], ()), "0"),
                **zone["resources"],
            },
        }
        for zone in case["zones"]
    ]
    return {**case, "zones": zones}


def _ordered(case: Case) -> bool:
    """Whether the node's label names a strategy and there may be a NUMA policy."""
    labels = case.get("nodeLabels", {})
    own = case["pod"].get("numaTopologySpec")
    return STRATEGY_LABEL in labels and bool(
        NUMA_LABEL in labels or case.get("topologyPolicies") or own
    )


def _without_strategy(case: Case) -> Case:
    kept = {key: value for key, value in case["nodeLabels"].items() if key != STRATEGY_LABEL}
    return {**case, "nodeLabels": kept}


def _split(case: Case) -> bool:
    return len(case["zones"]) > 1


def _amplified_without_cpus(case: Case) -> bool:
    return _amplified(case) and _no_cpus(case)


def _amplified_conflict(case: Case) -> bool:
    return _amplified(case) and _REQUIRED in _spec(case)


def _exclusive(case: Case) -> bool:
    return _EXCLUSIVE in _spec(case)


def _several_exclusive(case: Case) -> bool:
    held = [each.get("resourceSpec") or {} for each in case["allocated"]]
    return _exclusive(case) and any(_EXCLUSIVE in each for each in held)


def _spec(case: Case) -> Mapping[str, str]:
    return case["pod"].get("resourceSpec") or {}


def _without_policy(case: Case, name: str) -> Case:
    kept = {key: value for key, value in _spec(case).items() if key != name}
    return {**case, "pod": {**case["pod"], "resourceSpec": kept}}


def _amplified(case: Case) -> bool:
    return case.get("amplification", 1) > 1 and "cpu" in case["pod"]["requests"]


def _without_cpu(case: Case) -> bool:
    return "cpu" not in case["pod"]["requests"]


def _amplified_without_request(case: Case) -> bool:
    return case.get("amplification", 1) > 1 and _without_cpu(case)


class Quirk(msgspec.Struct, frozen=True):
    """A wrong rule of Koordinator. The fields say how an answer is computed with it; those without
    a description are arguments of KoordinatorTrials (`unpaid` as `loose`)."""

    difference: Difference
    applies: Callable[[Case], bool]
    """It tells whether the rule can affect a case."""
    case: Callable[[Case], Case] = _unchanged
    """It changes the case."""
    recorded_only: bool = False
    """RecordedAllocation is used."""
    unpaid: bool = False
    by_position: bool = False
    unbound: bool = False
    mixed: bool = False
    single_cpus: bool = False
    uncounted: bool = False
    """The answer has no amounts of NUMA nodes."""
    unamplified: bool = False
    """The score ignores the amplification ratio."""
    refused: str = ""
    """Every pod is refused with this code, unless it is empty."""


QUIRKS: Final = (
    Quirk(
        Difference(
            "policy-spellings",
            "of the spellings of a topology manager policy three are read; Topolet reads all",
            listed=True,
        ),
        _spelled,
        case=_without_policies,
    ),
    Quirk(
        Difference(
            "one-numa-node",
            "SingleNUMANode on a machine with one NUMA node counts nothing; Topolet counts all",
            listed=True,
        ),
        _single_machine,
        uncounted=True,
    ),
    Quirk(
        Difference(
            "be-owns-cpus",
            "where the node binds CPUs, BE pods own CPUs too; with Topolet they run on the rest",
            listed=True,
        ),
        _be_bound,
        case=_as_ls,
    ),
    Quirk(
        Difference(
            "strategy-unheard",
            "under a NUMA policy the node's label numa-allocate-strategy has no effect; with "
            "Topolet it chooses between the NUMA nodes that the policy leaves equal",
            listed=True,
        ),
        _ordered,
        case=_without_strategy,
    ),
    Quirk(
        Difference(
            "halved-cores",
            "under a NUMA policy a preferred FullPCPUs does not choose between NUMA nodes, and the "
            "CPUs of several are split by single CPUs, which halves cores; Topolet takes the NUMA "
            "nodes with enough whole cores, and splits by whole cores",
            listed=True,
        ),
        _split,
        single_cpus=True,
    ),
    Quirk(
        Difference(
            "split-by-position",
            "an amount is split over NUMA nodes by the availability of other nodes; Topolet "
            "splits it by the availability of these nodes",
            listed=True,
        ),
        _split,
        by_position=True,
    ),
    Quirk(
        Difference(
            "amplified-without-topology",
            "where CPU is amplified and no CPU topology is reported, every pod that requests CPU "
            "is rejected; Topolet counts the CPUs that pods own",
        ),
        _amplified_without_cpus,
        refused="UnschedulableAndUnresolvable",
    ),
    Quirk(
        Difference(
            "amplified-before-conflict",
            "a pod whose bind policy conflicts with the node's is rejected for missing amplified "
            "CPU, as if evictions helped; Topolet reports the conflict",
        ),
        _amplified_conflict,
        case=partial(_without_policy, name=_REQUIRED),
    ),
    Quirk(
        Difference(
            "exclusive-ignored",
            "a pod's exclusive policy does not choose between NUMA nodes, and NUMANodeLevel has no "
            "effect where no NUMA node satisfies it; Topolet takes the NUMA node that satisfies "
            "it, else other cores",
        ),
        _several_exclusive,
        mixed=True,
    ),
    Quirk(
        Difference(
            "exclusive-unheard",
            "the exclusive policy of a pod whose CPUs only the node binds is ignored; Topolet "
            "applies it to every pod",
        ),
        _exclusive,
        case=partial(_without_policy, name=_EXCLUSIVE),
    ),
    Quirk(
        Difference(
            "claims-without-topology",
            "on a node that reports no CPU topology, the amounts that pods hold of NUMA nodes are "
            "ignored; Topolet counts them",
        ),
        _no_cpus,
        case=_without_allocations,
    ),
    Quirk(
        Difference(
            "owned-without-amounts",
            "CPUs that a pod owns without recorded amounts are not subtracted from their NUMA "
            "node; Topolet subtracts them",
        ),
        _unrecorded,
        recorded_only=True,
    ),
    Quirk(
        Difference(
            "amplified-cpu-unpaid",
            "more CPUs are bound in a NUMA node than its amplified CPU covers; Topolet binds as "
            "many as it covers",
        ),
        _amplified,
        unpaid=True,
    ),
    Quirk(
        Difference(
            "fitting-without-cpu",
            "for a pod that requests no CPU, NUMA nodes are compared by the CPUs that suit the "
            "node's bind policy; Topolet compares them by all their CPUs",
        ),
        _without_cpu,
        unbound=True,
    ),
    Quirk(
        Difference(
            "resource-not-in-zone",
            "a resource that zones do not report but a pod recorded makes pods fail; for Topolet "
            "it is not a resource of NUMA nodes",
            listed=True,
        ),
        _uncounted,
        case=_with_nothing,
    ),
    Quirk(
        Difference(
            "amplified-without-cpu",
            "a pod that requests no CPU is scored as if owned CPUs were not amplified; Topolet "
            "counts them amplified",
        ),
        _amplified_without_request,
        unamplified=True,
    ),
)
DIFFERENCES: Final = tuple(each.difference for each in QUIRKS)


class RecordedAllocation(NodeAllocation):
    """CPUs that a pod owns without recorded amounts stay available on their NUMA node."""

    def available(self) -> Amounts:
        return self.left_by_records()


def offer_with(
    trials: Callable[..., Trials],
    options: TopologyOptions,
    node_allocation: NodeAllocation,
    request: ResourceRequest,
) -> CpuOffer | Refusal:
    """The offer that follows from these trials of NUMA nodes instead of Topolet's."""
    with patch.object(cpus, "Trials", trials):
        return cpus.cpu_offer(options, node_allocation, request)


class KoordinatorTrials(Trials):
    """Trials with wrong rules of Koordinator.

    `loose`: unless a bind policy is required, a NUMA node has its recorded amounts, regardless of
        its free CPUs and of amplification.
    `by_position`: an amount is split in the order of the amounts of the NUMA nodes 0, 1, ...,
        whatever the ids of the nodes are.
    `unbound`: for a pod without CPU, a NUMA node has only the CPU that suits the node's bind
        policy.
    `mixed`: the exclusive policy is not downgraded and does not choose between NUMA nodes.
    `single_cpus`: a preferred FullPCPUs does not choose between NUMA nodes, and CPUs are split one
        by one."""

    def __init__(
        self,
        options: TopologyOptions,
        node_allocation: NodeAllocation,
        request: ResourceRequest,
        policies: InForce,
        steps: Steps,
        *,
        with_devices: bool = False,
        loose: bool,
        by_position: bool,
        unbound: bool,
        mixed: bool,
        single_cpus: bool,
    ) -> None:
        self._loose = loose
        self._by_position = by_position
        self._single_cpus = single_cpus
        self.downgrade = not mixed
        super().__init__(
            options, node_allocation, request, policies, steps, with_devices=with_devices
        )
        node_policies = options.policies
        forced = (
            BindPolicy.FULL_PCPUS if node_policies.full_pcpus_only else node_policies.bind_label
        )
        if unbound and policies.bind is None and forced is not None:
            self._keep_fitting(forced)

    def exclusivity(self, mask: int) -> CpuExclusivity:
        return super().exclusivity(mask) if self.downgrade else CpuExclusivity.SATISFIED

    def trim(self) -> None:
        if not self._loose:
            super().trim()
            return
        bind = self.policies.bind
        if bind is not None and bind.required:
            self._keep_fitting(bind.policy)

    def _keep_fitting(self, policy: BindPolicy) -> None:
        layout = self._options.layout
        if layout is None:
            return
        for area in layout.nodes:
            most = 1000 * self.suitable(self._free & area.cpus, policy)
            for amounts in (self.available, self._recorded):
                if "cpu" in (held := amounts.get(area.id, {})):
                    held["cpu"] = min(held["cpu"], most)

    def lacks(self, nodes: Collection[int]) -> Refusal | None:
        found = self.on_nodes(nodes)
        return found if isinstance(found, Refusal) else None

    @cached_property
    def _whole_milli(self) -> dict[int, int]:
        return {} if self._single_cpus else super()._whole_milli

    def split(
        self,
        name: str,
        requested: int,
        room: dict[int, int],
        cpu_shares: Mapping[int, int] = _NO_CPU,
    ) -> dict[int, int]:
        if not self._by_position:
            return super().split(name, requested, room, cpu_shares)
        order = _insertion_sorted(sorted(room), self.available, name)
        unit, shares = self.unit(name), {}
        for index, node in enumerate(order):
            share = min(room[node], requested // unit // (len(order) - index) * unit)
            if share > 0:
                shares[node] = share
                requested -= share
        return shares


def _insertion_sorted(nodes: list[int], available: Amounts, name: str) -> list[int]:
    """The nodes sorted as Koordinator does: by the amounts at positions instead of the amounts of
    the nodes."""
    have = [available.get(place, {}).get(name, 0) for place in range(len(nodes))]
    for end in range(1, len(nodes)):
        place = end
        while place and have[place] < have[place - 1]:
            nodes[place], nodes[place - 1] = nodes[place - 1], nodes[place]
            place -= 1
    return nodes
