"""Where ours gives other answers than Koordinator's NodeNUMAResource on purpose.

Each is a rule of theirs that is wrong, as what it does to a case, to the account or to the answer:
a case is declared only if ours under that rule answers exactly what they did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from agent.allocate.precedence import BIND_LABEL
from agent.conformance.verdict import Difference
from agent.model.policies import NumaPolicy

Case = Mapping[str, Any]

READ_POLICIES: Final = ("BestEffort", "Restricted", "SingleNUMANodePodLevel")


def _as_it_is(case: Case) -> Case:
    return case


class Quirk(msgspec.Struct, frozen=True):
    """`applies`: whether the case is one that the rule is about. `case`: what it makes of it.
    `recorded_only`, `unpaid`: of TheirAccount. `unaccounted`: no amounts of NUMA nodes are written.
    `unamplified`: the score knows no ratio."""

    difference: Difference
    applies: Callable[[Case], bool]
    case: Callable[[Case], Case] = _as_it_is
    recorded_only: bool = False
    unpaid: bool = False
    unaccounted: bool = False
    unamplified: bool = False


def _spelled(case: Case) -> bool:
    return any(word not in READ_POLICIES for word in case.get("topologyPolicies", ()))


def _without_policies(case: Case) -> Case:
    return {**case, "topologyPolicies": []}


def _single_machine(case: Case) -> bool:
    return len(case["zones"]) == 1 and NumaPolicy.SINGLE_NUMA_NODE in str(_policies(case))


def _policies(case: Case) -> list[Any]:
    spec = case["pod"].get("numaTopologySpec") or {}
    labels = case.get("nodeLabels", {})
    return [*labels.values(), *case.get("topologyPolicies", ()), *spec.values()]


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
    recorded = _recorded(case)
    zones = [
        {
            **zone,
            "resources": {
                **dict.fromkeys(recorded.get(zone["node"], ()), "0"),
                **zone["resources"],
            },
        }
        for zone in case["zones"]
    ]
    return {**case, "zones": zones}


def _amplified(case: Case) -> bool:
    return case.get("amplification", 1) > 1 and "cpu" in case["pod"]["requests"]


def _amplified_for_nothing(case: Case) -> bool:
    return case.get("amplification", 1) > 1 and "cpu" not in case["pod"]["requests"]


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
