"""Where ours chooses other devices than Koordinator on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from agent.allocate.bits import members
from agent.allocate.devices.allocation import DeviceRequest
from agent.allocate.devices.need import Need, need
from agent.allocate.devices.request import RequestFault
from agent.allocate.devices.scores import score, summed
from agent.allocate.devices.state import NodeDevices
from agent.allocate.devices.view import allowed_devices
from agent.conformance import device_reasons as reasons
from agent.conformance.device_reasons import Answers
from agent.conformance.devices import CORE_OF_SEVERAL, HEALTHY_ALONE, UNEVEN_SHARES
from agent.conformance.verdict import Difference
from agent.model.policies import NumaStrategy

Test = Callable[[DeviceRequest, dict[str, Need], Answers], bool]


class DeviceCase(msgspec.Struct, frozen=True):
    """A case as our values. `request`: or why ours refuses it before it looks at the node."""

    node: NodeDevices
    request: DeviceRequest | RequestFault
    numa: int | None
    strategy: NumaStrategy | None


_TESTS: Final[tuple[tuple[Difference, Test], ...]] = (
    (CORE_OF_SEVERAL, reasons.core_of_several),
    (HEALTHY_ALONE, reasons.for_all_healthy),
    (
        Difference(
            "pcie-level-exclusion",
            "the exclusive policy PCIeLevel has no effect; ours gives no device whose neighbours "
            "under the switch are in use",
            listed=True,
        ),
        reasons.pcie_exclusive,
    ),
    (
        Difference(
            "partition-order",
            "sets of the partition table are tried from the worst score up, and Restricted looks "
            "at the worst alone; ours goes from the best down",
            listed=True,
        ),
        reasons.partition_order,
    ),
    (
        Difference(
            "shares-as-asked",
            "shares of cards go to the wrong one of two (free and total are mixed up), or to the "
            "fuller switch whatever the strategy; ours goes by the strategy",
            listed=True,
        ),
        reasons.shares_as_asked,
    ),
    (
        Difference(
            "several-shares-in-scope",
            "shares of several cards within a scope are refused; ours chooses them",
            listed=True,
        ),
        reasons.shares_in_scope,
    ),
    (
        Difference(
            "switch-that-works",
            "GPUs are chosen first, and the pod fails where their switches have no NIC; ours "
            "finds switches that have both",
            listed=True,
        ),
        reasons.switch_found,
    ),
    (
        Difference(
            "as-many-as-asked",
            "a pod that prefers NICs near its GPUs gets one for each switch, more than it asked "
            "for; ours gives as many as asked",
            listed=True,
        ),
        reasons.as_many_as_asked,
    ),
    (
        Difference(
            "gpu-beside-nic",
            "GPUs that follow a NIC are chosen as if they were alone; ours looks under the NIC's "
            "switch first",
            listed=True,
        ),
        reasons.gpu_beside,
    ),
    (
        Difference(
            "unfit-take-turns",
            "NICs that have too little left, or are ill, take their switch's turn, so that the "
            "next of the switch comes after all others; ours counts those that fit alone",
        ),
        reasons.unfit_take_turns,
    ),
    (
        Difference(
            "functions-by-number",
            "virtual functions are taken in the order of texts, 10 before 2; ours by number",
            listed=True,
        ),
        reasons.functions_by_number,
    ),
    (
        Difference(
            "resource-not-listed",
            "a device that does not list a resource gives any amount of it; ours gives none",
        ),
        reasons.not_listed,
    ),
)

NODE_SCORE: Final = Difference(
    "score-of-what-is-held",
    "a node is scored as if the pod took one device, and no memory where it asks by percent; ours "
    "scores it with all that the pod gets",
    listed=True,
)
DIFFERENCES: Final = (*(each for each, _ in _TESTS), UNEVEN_SHARES, NODE_SCORE)


def declared(question: DeviceCase, theirs: dict[str, Any], ours: dict[str, Any]) -> str | None:
    """The name of the difference, None where there is none. Where both chose the same devices,
    theirs has to be the score that their rule gives."""
    request = question.request
    if isinstance(request, RequestFault):
        return UNEVEN_SHARES.name if request is RequestFault.UNEVEN else None
    needs = _needs(question, request)
    if theirs.get("allocation") == ours.get("allocation"):
        return NODE_SCORE.name if theirs["score"] == _of_one(question, needs) else None
    answers = Answers(theirs.get("allocation"), ours.get("allocation"))
    return next((each.name for each, test in _TESTS if test(request, needs, answers)), None)


def _needs(question: DeviceCase, request: DeviceRequest) -> dict[str, Need]:
    found = {}
    for kind, ask in request.asks.items():
        hint = request.wishes.hints.get(kind)
        each = need(
            question.node,
            kind,
            ask,
            hint,
            request.wishes.partition,
            question.numa,
            question.strategy,
        )
        if isinstance(each, Need):
            found[kind] = each
    return found


def _of_one(question: DeviceCase, needs: dict[str, Need]) -> int:
    """Their score: of one device's request, by what was asked, over all that hint and NUMA nodes
    leave."""
    assert question.strategy is not None
    points = 0
    for each in needs.values():
        seen = each.seen
        allowed = list(members(allowed_devices(seen.fleet, each.hint, question.numa)))
        points += score(
            each.ask.per,
            summed(seen.fleet.totals[minor] for minor in allowed),
            summed(seen.stock.free[minor] for minor in allowed),
            question.strategy,
        )
    return points
