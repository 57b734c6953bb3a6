"""Which pod leaves a node that can't prepare its claims."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from agent.allocate.dra.preparation import RefusalKind
from agent.allocate.dra.refusals import REFUSED_SECONDS, REFUSED_TIMES, UnpreparedClaim, leaver
from agent.model.pod.apiobjects import CONFIG_MIRROR, CRITICAL_PRIORITY, ApiPod, ClaimUse, Phase

NOW = 1000.0
POD = ApiPod(
    "u-p", "ns", "p", "n1", Phase.PENDING, {}, {}, "burstable", 0, claims=(ClaimUse("x", "a"),)
)
TAKEN = UnpreparedClaim(
    "u-a", "ns", "a", RefusalKind.TAKEN, "taken", NOW - REFUSED_SECONDS, NOW, REFUSED_TIMES
)


def test_the_pod_that_waits_longest_leaves() -> None:
    later = replace(POD, uid="u-q", name="q", claims=(ClaimUse("x", "b"),))
    claims = [replace(TAKEN, uid="u-b", name="b"), replace(TAKEN, since=0.0)]
    assert leaver(claims, [later, POD], NOW) == (POD, claims[1])
    assert leaver(claims[:1], [later, POD], NOW) == (later, claims[0])


@pytest.mark.parametrize(
    ("kind", "leaves"),
    [
        (RefusalKind.TAKEN, True),
        (RefusalKind.NO_DEVICE, True),
        (RefusalKind.NOT_OFFERED, True),
        (RefusalKind.NOT_READY, False),
        (RefusalKind.CLAIM, False),
        (RefusalKind.NOT_KEPT, False),
    ],
)
def test_a_pod_leaves_for_a_reason_that_another_node_may_not_have(
    kind: RefusalKind, leaves: bool
) -> None:
    assert (leaver([replace(TAKEN, kind=kind)], [POD], NOW) is not None) is leaves


@pytest.mark.parametrize(
    ("of_pod", "of_claim"),
    [
        ({"phase": Phase.RUNNING}, {}),
        ({"deleted": True}, {}),
        ({"annotations": {CONFIG_MIRROR: "hash"}}, {}),
        ({"controlling_node": "u-n1"}, {}),
        ({"priority": CRITICAL_PRIORITY}, {}),
        ({"namespace": "other"}, {}),
        ({"claims": (ClaimUse("x", "other"),)}, {}),
        ({}, {"times": REFUSED_TIMES - 1}),
        ({}, {"since": NOW - REFUSED_SECONDS + 1}),
    ],
)
def test_a_pod_stays(of_pod: dict[str, Any], of_claim: dict[str, Any]) -> None:
    assert leaver([replace(TAKEN, **of_claim)], [replace(POD, **of_pod)], NOW) is None
