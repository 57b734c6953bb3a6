"""Looks at a case of NodeNUMAResource: is Koordinator known to be wrong about such a one, and what
do they make of it?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent.allocate.policies_in_force import BIND_LABEL
from agent.model.policies import NumaPolicy

Case = Mapping[str, Any]

REQUIRED: Final = "requiredCPUBindPolicy"
EXCLUSIVE: Final = "preferredCPUExclusivePolicy"
READ_POLICIES: Final = ("BestEffort", "Restricted", "SingleNUMANodePodLevel")


def as_it_is(case: Case) -> Case:
    return case


def spelled(case: Case) -> bool:
    return any(word not in READ_POLICIES for word in case.get("topologyPolicies", ()))


def without_policies(case: Case) -> Case:
    return {**case, "topologyPolicies": []}


def single_machine(case: Case) -> bool:
    return len(case["zones"]) == 1 and NumaPolicy.SINGLE_NUMA_NODE in str(policies(case))


def policies(case: Case) -> list[Any]:
    own = case["pod"].get("numaTopologySpec") or {}
    labels = case.get("nodeLabels", {})
    return [*labels.values(), *case.get("topologyPolicies", ()), *own.values()]


def be_bound(case: Case) -> bool:
    forced = case.get("nodeLabels", {}).get(BIND_LABEL, "None") != "None" or bool(
        case.get("kubelet", {}).get("options")
    )
    return forced and case["pod"].get("qos") == "BE"


def as_ls(case: Case) -> Case:
    return {**case, "pod": {**case["pod"], "qos": "LS"}}


def no_cpus(case: Case) -> bool:
    return bool(case.get("noCPUTopology"))


def forgotten(case: Case) -> Case:
    return {**case, "allocated": [{"requests": each["requests"]} for each in case["allocated"]]}


def unrecorded(case: Case) -> bool:
    held = [each.get("resourceStatus", {}) for each in case["allocated"]]
    return any("cpuset" in each and "numaNodeResources" not in each for each in held)


def recorded(case: Case) -> dict[int, set[str]]:
    """What pods recorded, by NUMA node."""
    names: dict[int, set[str]] = {}
    for pod in case["allocated"]:
        for part in pod.get("resourceStatus", {}).get("numaNodeResources", ()):
            names.setdefault(part["node"], set()).update(part["resources"])
    return names


def uncounted(case: Case) -> bool:
    return with_nothing(case) != case


def with_nothing(case: Case) -> Case:
    """What pods recorded and a zone does not count is there, and there is none of it."""
    named = recorded(case)
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


def split(case: Case) -> bool:
    return len(case["zones"]) > 1


def amplified_blindly(case: Case) -> bool:
    return amplified(case) and no_cpus(case)


def amplified_conflict(case: Case) -> bool:
    return amplified(case) and REQUIRED in spec(case)


def exclusive(case: Case) -> bool:
    return EXCLUSIVE in spec(case)


def spec(case: Case) -> Mapping[str, str]:
    return case["pod"].get("resourceSpec") or {}


def unsaid(case: Case, word: str) -> Case:
    """The pod says nothing of it."""
    kept = {key: value for key, value in spec(case).items() if key != word}
    return {**case, "pod": {**case["pod"], "resourceSpec": kept}}


def amplified(case: Case) -> bool:
    return case.get("amplification", 1) > 1 and "cpu" in case["pod"]["requests"]


def without_cpu(case: Case) -> bool:
    return "cpu" not in case["pod"]["requests"]


def amplified_for_nothing(case: Case) -> bool:
    return case.get("amplification", 1) > 1 and without_cpu(case)
