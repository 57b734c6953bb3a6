"""The declared differences from Koordinator's device allocation: each with a predicate that finds
the cases in which Koordinator's answer is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from agent.allocate.devices.allocation import partners
from agent.allocate.devices.inventory import NodeDevices, device_score, summed
from agent.allocate.devices.need import Need, allowed_devices, need_of, selected
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import Strategy
from agent.model.devices.device_allocation import (
    DeviceAllocateStrategy,
    DeviceTopologyScope,
    Exclusion,
    JointScope,
)
from agent.model.devices.device_object import GPU_CORE, DeviceType
from agent.model.devices.device_request import FULL, DeviceRequest, RequestFault
from conformance.files import Difference

UNEVEN_SHARES: Final = Difference(
    "uneven-shares",
    "gpu-core that can't be divided into equal shares for the cards that the memory request needs "
    "is rounded down (100 on three cards: 33 each); Topolet refuses it",
    listed=True,
)
CORE_OF_SEVERAL: Final = Difference(
    "core-of-several-cards",
    "gpu-core of more than one card, with memory of one or by the byte, is requested of a single "
    "card and never fits; Topolet divides it over that number of cards",
    listed=True,
)
FRACTIONS_ADD_UP: Final = Difference(
    "fractions-add-up",
    "fractions of a device resource are added before they are rounded up (199.5 + 199.5 = 399); "
    "Topolet rounds the amount of each container. The API server refuses fractions of extended "
    "resources, so no pod in a cluster has them",
)
HEALTHY_ALONE: Final = Difference(
    "for-all-healthy",
    "ApplyForAll counts unhealthy devices, so the pod never fits a node with one; Topolet takes "
    "all healthy devices",
    listed=True,
)


GPU: Final = DeviceType.GPU.value


class _Answers(msgspec.Struct, frozen=True):
    """The allocations of both systems by device type; None for an error."""

    theirs: dict[str, Any] | None
    actual: dict[str, Any] | None

    def minors(self, kind: str) -> tuple[list[int], list[int]]:
        """Koordinator's and Topolet's minors."""
        both = [(each or {}).get(kind, ()) for each in (self.theirs, self.actual)]
        theirs, actual = ([one["minor"] for one in each] for each in both)
        return theirs, actual


def _core_of_several(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    gpus = request.requests.get(GPU)
    return (
        gpus is not None
        and gpus.count > 1
        and gpus.shared
        and gpus.total.get(GPU_CORE, 0) > FULL
        and answers.theirs is None
    )


def _for_all_healthy(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    return answers.theirs is None and any(
        each.hint is not None
        and each.hint.strategy is DeviceAllocateStrategy.APPLY_FOR_ALL
        and selected(each.candidates.fleet, each.hint) & ~each.candidates.fleet.healthy
        for each in needs.values()
    )


def _pcie_exclusive(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    """Whether Koordinator allocates a device that shares a switch with a used device."""
    return any(
        each.hint is not None
        and each.hint.exclusion is Exclusion.PCIE_LEVEL
        and any(not each.candidates.allowed >> minor & 1 for minor in answers.minors(each.kind)[0])
        for each in needs.values()
    )


def _partition_order(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    gpus = needs.get(GPU)
    if gpus is None or gpus.request.shared:
        return False
    table = gpus.node.inventory.partitions.table or {}
    theirs, actual = answers.minors(GPU)
    sets = {each.minors: each for each in table.get(gpus.request.count, ())}
    named = [sets.get(tuple(minors)) for minors in (theirs, actual) if minors]
    several = any(
        len({each.score for each in group}) > 1
        for size, group in table.items()
        if size >= gpus.request.count
    )
    return several and all(each is not None for each in named) and theirs != actual


def _shares_by_strategy(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    gpus = needs.get(GPU)
    theirs, actual = answers.minors(GPU)
    if gpus is None or not gpus.request.shared or len(theirs) != 1 or len(actual) != 1:
        return False
    return gpus.candidates.score_of(actual[0]) > gpus.candidates.score_of(theirs[0])


def _shares_in_scope(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    gpus = needs.get(GPU)
    return (
        gpus is not None
        and answers.theirs is None
        and gpus.request.shared
        and gpus.request.count > 1
        and gpus.hint is not None
        and gpus.hint.scope is not DeviceTopologyScope.ANYWHERE
    )


def _switch_with_both(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    joint = request.preferences.joint
    if joint is None or joint.scope is not JointScope.SAME_PCIE or answers.theirs is not None:
        return False
    kinds = partners(joint, request.preferences.hints, needs)
    switches = []
    for kind in kinds:
        places = (
            needs[kind].candidates.fleet.devices[each].topology for each in answers.minors(kind)[1]
        )
        switches.append({place.pcie for place in places if place is not None})
    return len(kinds) > 1 and all(each == switches[0] for each in switches)


def _as_many_as_requested(
    request: DeviceRequest, needs: dict[str, Need], answers: _Answers
) -> bool:
    """Whether Topolet's devices are the first ones of Koordinator's."""
    joint = request.preferences.joint
    if joint is None or joint.scope is not JointScope.PREFERRED:
        return False
    for kind, each in needs.items():
        theirs, actual = answers.minors(kind)
        if theirs != actual and not (
            len(theirs) > each.request.count == len(actual) and theirs[: len(actual)] == actual
        ):
            return False
    return True


def _gpu_near_nic(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    joint = request.preferences.joint
    if joint is None:
        return False
    lead, *others = partners(joint, request.preferences.hints, needs) or [""]
    return GPU in others and answers.minors(lead)[0] == answers.minors(lead)[1]


def _unfit_take_turns(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    """Whether the leading devices are the same, and some devices under their switches do not
    fit."""
    joint = request.preferences.joint
    kinds = partners(joint, request.preferences.hints, needs) if joint else []
    if not kinds or answers.minors(kinds[0])[0] != answers.minors(kinds[0])[1]:
        return False
    leading = needs[kinds[0]].candidates.fleet
    places = (leading.devices[each].topology for each in answers.minors(kinds[0])[1])
    switches = {place.pcie for place in places if place is not None}
    return any(
        mask & needs[kind].candidates.allowed & ~needs[kind].candidates.fitting
        for kind in kinds[1:]
        if kind != GPU
        for pcie, mask in needs[kind].candidates.fleet.pcies.items()
        if pcie in switches
    )


def _same_devices_with_functions(
    request: DeviceRequest, needs: dict[str, Need], answers: _Answers
) -> bool:
    wanted = any(each.hint and each.hint.vf_selector is not None for each in needs.values())
    same = all(theirs == actual for theirs, actual in map(answers.minors, needs))
    return wanted and same


def _resource_not_listed(request: DeviceRequest, needs: dict[str, Need], answers: _Answers) -> bool:
    return any(
        name not in each.candidates.fleet.totals.get(minor, {})
        for kind, each in needs.items()
        for minor in answers.minors(kind)[0]
        for name in each.request.per
    )


_Test = Callable[[DeviceRequest, dict[str, Need], _Answers], bool]


class DeviceCase(msgspec.Struct, frozen=True):
    """A case as Topolet's values."""

    node: NodeDevices
    request: DeviceRequest | RequestFault
    """A RequestFault if the request is invalid on any node."""
    numa: int | None
    strategy: Strategy | None


_TESTS: Final[tuple[tuple[Difference, _Test], ...]] = (
    (CORE_OF_SEVERAL, _core_of_several),
    (HEALTHY_ALONE, _for_all_healthy),
    (
        Difference(
            "pcie-level-exclusion",
            "the policy PCIeLevel has no effect; Topolet allocates no device with a used device "
            "under the same switch",
            listed=True,
        ),
        _pcie_exclusive,
    ),
    (
        Difference(
            "partition-order",
            "sets of the partition table are tried from the worst score up, and Restricted uses "
            "only the worst; Topolet tries the best score first",
            listed=True,
        ),
        _partition_order,
    ),
    (
        Difference(
            "shares-as-requested",
            "shares of cards are taken from the wrong one of two (free and total are mixed up), or "
            "from the fuller switch whatever the strategy; Topolet follows the strategy",
            listed=True,
        ),
        _shares_by_strategy,
    ),
    (
        Difference(
            "several-shares-in-scope",
            "shares of several cards within a scope are refused; Topolet allocates them",
            listed=True,
        ),
        _shares_in_scope,
    ),
    (
        Difference(
            "switch-that-works",
            "GPUs are chosen first, and the pod fails if their switches have no NIC; Topolet "
            "finds switches that have both",
            listed=True,
        ),
        _switch_with_both,
    ),
    (
        Difference(
            "as-many-as-requested",
            "a pod that prefers NICs near its GPUs gets one for each switch, more than it "
            "requests; Topolet gives the requested number",
            listed=True,
        ),
        _as_many_as_requested,
    ),
    (
        Difference(
            "gpu-beside-nic",
            "GPUs that follow a NIC are chosen without regard to it; Topolet tries the NIC's "
            "switch first",
            listed=True,
        ),
        _gpu_near_nic,
    ),
    (
        Difference(
            "unfit-take-turns",
            "a NIC that has too little left, or is unhealthy, takes its switch's turn, so the next "
            "NIC of that switch comes after all others; Topolet counts only NICs that fit",
        ),
        _unfit_take_turns,
    ),
    (
        Difference(
            "functions-by-number",
            "virtual functions are taken in text order, 10 before 2; Topolet takes them by number",
            listed=True,
        ),
        _same_devices_with_functions,
    ),
    (
        Difference(
            "resource-not-listed",
            "a device that does not list a resource has any amount of it; for Topolet it has none",
        ),
        _resource_not_listed,
    ),
)

_NODE_SCORE: Final = Difference(
    "score-of-what-is-held",
    "a node is scored as if the pod took one device, and no memory if it requests a percentage; "
    "Topolet scores it with all amounts that the pod gets",
    listed=True,
)
DIFFERENCES: Final = (*(each for each, _ in _TESTS), UNEVEN_SHARES, _NODE_SCORE)


def declared(question: DeviceCase, theirs: dict[str, Any], actual: dict[str, Any]) -> str | None:
    """The name of the difference, None if there is none. If both systems chose the same devices,
    Koordinator's score must be the one that its rule yields."""
    request = question.request
    if isinstance(request, RequestFault):
        return UNEVEN_SHARES.name if request is RequestFault.UNEVEN else None
    needs = _needs(question, request)
    if theirs.get("allocation") == actual.get("allocation"):
        return _NODE_SCORE.name if theirs["score"] == _of_one(question, needs) else None
    answers = _Answers(theirs.get("allocation"), actual.get("allocation"))
    return next((each.name for each, test in _TESTS if test(request, needs, answers)), None)


def _needs(question: DeviceCase, request: DeviceRequest) -> dict[str, Need]:
    found = {}
    for kind, requested in request.requests.items():
        hint = request.preferences.hints.get(kind)
        each = need_of(
            question.node,
            kind,
            requested,
            hint,
            request.preferences.partition,
            question.numa,
            question.strategy,
        )
        if isinstance(each, Need):
            found[kind] = each
    return found


def _of_one(question: DeviceCase, needs: dict[str, Need]) -> int:
    """Koordinator's score: for one device's request, by the requested amounts, over all devices
    that hint and NUMA nodes admit."""
    assert question.strategy is not None
    points = 0
    for each in needs.values():
        fleet, stock = each.candidates.fleet, each.candidates.stock
        allowed = list(members(allowed_devices(fleet, each.hint, question.numa)))
        points += device_score(
            fleet.weighed,
            each.request.per,
            summed(fleet.weighed, (fleet.totals[minor] for minor in allowed)),
            summed(fleet.weighed, (stock.free[minor] for minor in allowed)),
            question.strategy,
        )
    return points
