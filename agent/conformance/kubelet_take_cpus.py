"""kubelet-take-cpus: the static CPU manager's choice of CPUs, packed or distributed."""

from __future__ import annotations

from typing import Any, Final

from agent.allocate.kubelet.options import StaticOptions
from agent.allocate.kubelet.packed import NotEnoughCpus
from agent.allocate.kubelet.take import take
from agent.allocate.layout import of
from agent.conformance.machines import cpus
from agent.conformance.verdict import Difference, Verdict
from agent.model.cpuset import CpuSet

NAME: Final = "kubelet-take-cpus"
KEYS: Final = frozenset({"l3", "available", "need", "options"})
DIFFERENCES: Final[tuple[Difference, ...]] = ()


def judge(case: dict[str, Any]) -> Verdict:
    layout = of(cpus(case["shape"], case["numbering"], case["l3"]))
    options = StaticOptions(**{name.replace("-", "_"): True for name in case["options"]})
    free = CpuSet.parse(case["available"]).mask
    expect = case["expect"]
    ours: dict[str, Any]
    try:
        ours = {"cpuset": str(CpuSet.from_int(take(layout, free, case["need"], options)))}
    except NotEnoughCpus as error:
        ours = {"error": str(error)}
    return Verdict(ours == expect or ("error" in ours and "error" in expect), ours)
