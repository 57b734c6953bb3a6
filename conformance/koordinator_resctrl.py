"""koordlet's parts of the L3 cache (`l3`) and of the memory bandwidth (`mb`)."""

from __future__ import annotations

from typing import Any, Final

from agent.allocate.colocation.resctrl import (
    AMD_WHOLE,
    CacheWays,
    MemoryBandwidth,
    ResctrlError,
    bandwidth_limit,
    cache_mask,
)
from conformance.files import CaseVerdict, Difference, Judge

EMPTY_MASK: Final = Difference(
    "mask-without-ways",
    "the part near the end of the cache is rounded to no way at all (11 ways, 93 to 100 %), and "
    "the kernel refuses the mask 0; Topolet gives the fewest ways that the machine accepts",
    listed=True,
)

_PERCENT: Final = MemoryBandwidth((0,))
_AMD: Final = MemoryBandwidth((0,), unlimited=2048, least=1, step=1, whole=AMD_WHOLE)


def judge(case: dict[str, Any]) -> CaseVerdict:
    return _cache(case) if case["op"] == "l3" else _bandwidth(case)


def _cache(case: dict[str, Any]) -> CaseVerdict:
    actual: dict[str, Any]
    try:
        actual = {
            "mask": f"{cache_mask(CacheWays((0,), case['cbm']), case['start'], case['end']):x}"
        }
    except ResctrlError:
        actual = {"error": True}
    if actual == case["expect"]:
        return CaseVerdict(True, actual)
    declared = EMPTY_MASK.name if case["expect"] == {"mask": "0"} else None
    return CaseVerdict(False, actual, declared)


def _bandwidth(case: dict[str, Any]) -> CaseVerdict:
    of_machine = _AMD if case["vendor"] == "AuthenticAMD" else _PERCENT
    limit = bandwidth_limit(of_machine, case["percent"])
    actual = {"mb": "" if limit is None else str(limit)}
    return CaseVerdict(actual == case["expect"], actual)


JUDGES: Final = {"koordinator-resctrl": Judge(judge, (EMPTY_MASK,))}
