"""Koordinator's node agent: the pools that it reports, and the cpuset that it gives a container.

Three decisions, by the value of `op`: `pools`, `hook` (a container), `hostapp` (a host
application)."""

from __future__ import annotations

from typing import Any, Final

from agent.conformance import koordinator_cpuset_hook, koordinator_pools
from agent.conformance.files import CaseVerdict, Difference
from agent.conformance.koordinator_cpuset_hook import BE_ON_LS_POOL, EMPTY_POOL, STRAY_COMMA
from agent.conformance.koordinator_pools import CLAIMED_TWICE, KUBELET_DECIDES

DIFFERENCES: Final[tuple[Difference, ...]] = (
    CLAIMED_TWICE,
    KUBELET_DECIDES,
    BE_ON_LS_POOL,
    STRAY_COMMA,
    EMPTY_POOL,
)
_JUDGES: Final = {
    "pools": koordinator_pools.judge,
    "hook": koordinator_cpuset_hook.judge,
    "hostapp": koordinator_cpuset_hook.judge_host_application,
}


def judge(case: dict[str, Any]) -> CaseVerdict:
    return _JUDGES[case["op"]](case)
