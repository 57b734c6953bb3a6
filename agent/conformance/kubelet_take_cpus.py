"""kubelet-take-cpus: the static CPU manager's choice of CPUs, packed or distributed."""

from __future__ import annotations

from typing import Any, Final

from agent.allocate.kubelet.cpu_assignment import NotEnoughCpusError, take
from agent.allocate.kubelet.static_policy import StaticOptions
from agent.allocate.layout import of
from agent.conformance.files import CaseVerdict
from agent.conformance.kubelet_shared_slice import SHARED_SLICE, overwritten
from agent.conformance.machines import cpus
from agent.model.cpuset import CpuSet

DIFFERENCES: Final = (SHARED_SLICE,)


def judge(case: dict[str, Any]) -> CaseVerdict:
    layout = of(cpus(case["shape"], case["numbering"], case["l3"]))
    options = StaticOptions(**{name.replace("-", "_"): True for name in case["options"]})
    free = CpuSet.parse(case["available"]).mask
    expect = case["expect"]
    try:
        taken = take(layout, free, case["need"], options)
    except NotEnoughCpusError as error:
        refused = "error" in expect or "hang" in expect or "panic" in expect
        return CaseVerdict(refused, {"error": str(error)})
    ours = {"cpuset": str(CpuSet.from_int(taken))}
    if "hang" in expect or "panic" in expect:
        return CaseVerdict(taken.bit_count() == case["need"] and not taken & ~free, ours)
    if ours == expect:
        return CaseVerdict(True, ours)
    theirs = CpuSet.parse(expect.get("cpuset", "")).mask
    quirk = case.get("quirk") == SHARED_SLICE.name and options.distribute_cpus_across_numa
    declared = quirk and overwritten(layout, free, taken, theirs)
    return CaseVerdict(False, ours, SHARED_SLICE.name if declared else None)
