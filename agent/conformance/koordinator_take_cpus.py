"""Koordinator's CPU accumulator: the same CPUs for the same request."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from agent.allocate import layout as layouts
from agent.allocate.accumulator import Taken, take
from agent.allocate.layout import NOTHING_HELD, Layout
from agent.allocate.packing import CpuRequest
from agent.conformance import machines
from agent.conformance.files import CaseVerdict, Difference, Judge
from agent.model.cpuset import CpuSet
from agent.model.policies import BindPolicy, ExclusivePolicy, Strategy

MORE_THAN_ASKED: Final = Difference(
    name="more-than-asked",
    reason=(
        "a FullPCPUs request that ends inside a core gets the whole core where it takes the last "
        "whole cores of a socket: more CPUs than it asked for, and more than it pays for"
    ),
)


def judge(case: dict[str, Any]) -> CaseVerdict:
    """Errors agree with errors of any text."""
    request = CpuRequest(
        count=case["need"],
        bind=BindPolicy(case["bind"]),
        exclusive=_exclusive(case["exclusive"]),
        strategy=Strategy(case["strategy"]),
    )
    holdings = NOTHING_HELD
    for each in case["allocated"]:
        cpus = CpuSet.parse(each["cpus"]).mask
        times = min(each["ref"], case["maxRef"])  # more is no different
        holdings = holdings.adding(cpus, _exclusive(each["exclusive"]), times)
    answer = take(
        _layout(tuple(case["shape"]), case["numbering"]),
        CpuSet.parse(case["available"]).mask,
        holdings,
        request,
        case["maxRef"],
        CpuSet.parse(case.get("preferred", "")).mask,
    )
    expected = case["expect"]
    if not isinstance(answer, Taken):
        return CaseVerdict("error" in expected, {"error": answer.reason.value})
    ours = CpuSet.from_int(answer.cpus)
    if ours == CpuSet.parse(expected.get("cpuset", "")):
        return CaseVerdict("cpuset" in expected, {"cpuset": str(ours)})
    declared = MORE_THAN_ASKED.name if _more_than_asked(case) else None
    return CaseVerdict(False, {"cpuset": str(ours)}, declared)


def _more_than_asked(case: dict[str, Any]) -> bool:
    """Less than a core too many, for a request that ends inside a core: by itself, or by what the
    preferred CPUs leave of it."""
    threads: int = case["shape"][3]
    need: int = case["need"]
    surplus = len(CpuSet.parse(case["expect"].get("cpuset", ""))) - need
    inside = need % threads > 0 or "preferred" in case
    return case["bind"] == BindPolicy.FULL_PCPUS.value and inside and 0 < surplus < threads


def _exclusive(text: str) -> ExclusivePolicy:
    return ExclusivePolicy(text) if text else ExclusivePolicy.NONE


@lru_cache(maxsize=256)
def _layout(shape: tuple[float, ...], numbering: str) -> Layout:
    return layouts.of(machines.cpus(shape, numbering))


JUDGES: Final = {
    "koordinator-take-cpus": Judge(judge, (MORE_THAN_ASKED,)),
}
