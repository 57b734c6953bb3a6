"""The declared differences from Koordinator's NodeNUMAResource.

Each is a rule of theirs that is wrong, as what it does to a case, to the account of the node, to
the trials of its NUMA nodes or to the answer. A case is declared only if ours under that rule
answers exactly what they did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from agent.allocate.node_allocation import Amounts, NodeAllocation, TopologyOptions
from agent.allocate.policies_in_force import BIND_LABEL, InForce
from agent.allocate.reasons import Rejection
from agent.allocate.resource_request import ResourceRequest
from agent.allocate.trials import Trials
from agent.conformance.files import Difference
from agent.model.cpu.policies import BindPolicy, NumaPolicy

Case = Mapping[str, Any]

_REQUIRED: Final = "requiredCPUBindPolicy"
_EXCLUSIVE: Final = "preferredCPUExclusivePolicy"
_READ_POLICIES: Final = ("BestEffort", "Restricted", "SingleNUMANodePodLevel")


def _as_it_is(case: Case) -> Case:
    return case


def _spelled(case: Case) -> bool:
    return any(word not in _READ_POLICIES for word in case.get("topologyPolicies", ()))


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


def _forgotten(case: Case) -> Case:
    return {**case, "allocated": [{"requests": each["requests"]} for each in case["allocated"]]}


def _unrecorded(case: Case) -> bool:
    held = [each.get("resourceStatus", {}) for each in case["allocated"]]
    return any("cpuset" in each and "numaNodeResources" not in each for each in held)


def _recorded(case: Case) -> dict[int, set[str]]:
    """What pods recorded, by NUMA node."""
    names: dict[int, set[str]] = {}
    for pod in case["allocated"]:
        for part in pod.get("resourceStatus", {}).get("numaNodeResources", ()):
            names.setdefault(part["node"], set()).update(part["resources"])
    return names


def _uncounted(case: Case) -> bool:
    return _with_nothing(case) != case


def _with_nothing(case: Case) -> Case:
    """What pods recorded and a zone does not count is there, and there is none of it."""
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


def _split(case: Case) -> bool:
    return len(case["zones"]) > 1


def _amplified_blindly(case: Case) -> bool:
    return _amplified(case) and _no_cpus(case)


def _amplified_conflict(case: Case) -> bool:
    return _amplified(case) and _REQUIRED in _spec(case)


def _exclusive(case: Case) -> bool:
    return _EXCLUSIVE in _spec(case)


def _spec(case: Case) -> Mapping[str, str]:
    return case["pod"].get("resourceSpec") or {}


def _unsaid(case: Case, word: str) -> Case:
    """The pod has no such policy."""
    kept = {key: value for key, value in _spec(case).items() if key != word}
    return {**case, "pod": {**case["pod"], "resourceSpec": kept}}


def _amplified(case: Case) -> bool:
    return case.get("amplification", 1) > 1 and "cpu" in case["pod"]["requests"]


def _without_cpu(case: Case) -> bool:
    return "cpu" not in case["pod"]["requests"]


def _amplified_for_nothing(case: Case) -> bool:
    return case.get("amplification", 1) > 1 and _without_cpu(case)


class Quirk(msgspec.Struct, frozen=True):
    """`applies`: whether the case is one that the rule is about. `case`: what it makes of it.
    `recorded_only`: a RecordedAccount; `unpaid`, `by_position`, `unbound`: TheirTrials.
    `unaccounted`: no amounts of NUMA nodes are written. `unamplified`: the score knows no ratio.
    `refused`: every pod is, with that code."""

    difference: Difference
    applies: Callable[[Case], bool]
    case: Callable[[Case], Case] = _as_it_is
    recorded_only: bool = False
    unpaid: bool = False
    by_position: bool = False
    unbound: bool = False
    unaccounted: bool = False
    unamplified: bool = False
    refused: str = ""


QUIRKS: Final = (
    Quirk(
        Difference(
            "policy-spellings",
            "of the spellings of a topology manager policy three are read; ours reads all",
            listed=True,
        ),
        _spelled,
        case=_without_policies,
    ),
    Quirk(
        Difference(
            "one-numa-node",
            "SingleNUMANode on a machine of one NUMA node accounts for nothing; ours accounts",
            listed=True,
        ),
        _single_machine,
        unaccounted=True,
    ),
    Quirk(
        Difference(
            "be-owns-cpus",
            "where the node binds CPUs BE pods own some too; ours leave them on what is left",
            listed=True,
        ),
        _be_bound,
        case=_as_ls,
    ),
    Quirk(
        Difference(
            "split-by-position",
            "an amount is split over NUMA nodes by what others of them have; ours goes by the "
            "nodes themselves",
            listed=True,
        ),
        _split,
        by_position=True,
    ),
    Quirk(
        Difference(
            "amplified-without-topology",
            "where CPU is amplified and no CPU topology is reported, no pod that asks for CPU "
            "comes; ours counts what pods own",
        ),
        _amplified_blindly,
        refused="UnschedulableAndUnresolvable",
    ),
    Quirk(
        Difference(
            "amplified-before-conflict",
            "a pod whose bind policy conflicts with the node's is told first that amplified CPU "
            "is lacking, as if evicting pods could help; ours names the conflict",
        ),
        _amplified_conflict,
        case=partial(_unsaid, word=_REQUIRED),
    ),
    Quirk(
        Difference(
            "exclusive-unheard",
            "the exclusive policy of a pod whose CPUs only the node binds is not heard; ours hears "
            "whoever has one",
        ),
        _exclusive,
        case=partial(_unsaid, word=_EXCLUSIVE),
    ),
    Quirk(
        Difference(
            "claims-without-topology",
            "on a node that reports no CPU topology what pods hold of NUMA nodes is forgotten; "
            "ours counts it",
        ),
        _no_cpus,
        case=_forgotten,
    ),
    Quirk(
        Difference(
            "owned-without-amounts",
            "CPUs that a pod owns without recorded amounts are not gone from their NUMA node; "
            "with ours they are",
        ),
        _unrecorded,
        recorded_only=True,
    ),
    Quirk(
        Difference(
            "amplified-cpu-unpaid",
            "CPUs are bound in a NUMA node that has not so much amplified CPU left; ours binds as "
            "many as it can pay for",
        ),
        _amplified,
        unpaid=True,
    ),
    Quirk(
        Difference(
            "fitting-without-cpu",
            "for a pod that asks for no CPU NUMA nodes are compared by the CPUs that suit the "
            "policy by which the node binds others; ours compares what they have",
        ),
        _without_cpu,
        unbound=True,
    ),
    Quirk(
        Difference(
            "resource-not-in-zone",
            "a resource that a zone does not count but a pod recorded makes pods fail; ours does "
            "not take it for the NUMA nodes'",
            listed=True,
        ),
        _uncounted,
        case=_with_nothing,
    ),
    Quirk(
        Difference(
            "amplified-without-cpu",
            "a pod that asks for no CPU is scored as if CPU that others own were not amplified; "
            "ours counts the node as it is",
        ),
        _amplified_for_nothing,
        unamplified=True,
    ),
)
DIFFERENCES: Final = tuple(each.difference for each in QUIRKS)


class RecordedAccount(NodeAllocation):
    """CPUs that a pod owns without recorded amounts are still their NUMA node's to give."""

    def available(self) -> Amounts:
        return self.recorded()


class TheirTrials(Trials):
    """`loose`: a NUMA node has all that its amounts tell, whatever CPUs are free and what they cost
    amplified, unless a bind policy is required. `by_position`: an amount is split in the order of
    what the NUMA nodes 0, 1, ... have, whichever nodes these are. `unbound`: for a pod without CPU
    a NUMA node has no more CPU than suits the policy by which the node binds others."""

    def __init__(
        self,
        options: TopologyOptions,
        account: NodeAllocation,
        ask: ResourceRequest,
        policies: InForce,
        *,
        loose: bool,
        by_position: bool,
        unbound: bool,
    ) -> None:
        self._loose = loose
        self._by_position = by_position
        super().__init__(options, account, ask, policies)
        said = options.policies
        forced = BindPolicy.FULL_PCPUS if said.full_pcpus_only else said.bind_label
        if unbound and policies.bind is None and forced is not None:
            self._keep_fitting(forced)

    def trim(self) -> None:
        if not self._loose:
            super().trim()
            return
        bind = self._policies.bind
        if bind is not None and bind.required:
            self._keep_fitting(bind.policy)

    def _keep_fitting(self, policy: BindPolicy) -> None:
        layout = self._options.layout
        if layout is None:
            return
        for area in layout.nodes:
            free = self._free & area.cpus
            whole = policy is BindPolicy.FULL_PCPUS
            fitting = layout.expand(layout.whole(free)) if whole else layout.touched(free)
            for amounts in (self.available, self._recorded):
                if "cpu" in (held := amounts.get(area.id, {})):
                    held["cpu"] = min(held["cpu"], 1000 * fitting.bit_count())

    def lacks(self, nodes: Collection[int]) -> Rejection | None:
        found = self.on_nodes(nodes)
        return found if isinstance(found, Rejection) else None

    def split(self, name: str, asked: int, room: dict[int, int]) -> dict[int, int]:
        order = sorted(room, key=lambda node: (room[node], node))
        if self._by_position:
            order = _insertion_sorted(sorted(room), self.available, name)
        unit, shares = self.unit(name), {}
        for index, node in enumerate(order):
            share = min(room[node], asked // unit // (len(order) - index) * unit)
            if share > 0:
                shares[node] = share
                asked -= share
        return shares


def _insertion_sorted(nodes: list[int], available: Amounts, name: str) -> list[int]:
    """By comparing places instead of what stands there."""
    have = [available.get(place, {}).get(name, 0) for place in range(len(nodes))]
    for end in range(1, len(nodes)):
        place = end
        while place and have[place] < have[place - 1]:
            nodes[place], nodes[place - 1] = nodes[place - 1], nodes[place]
            place -= 1
    return nodes
