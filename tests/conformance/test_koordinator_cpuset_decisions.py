from __future__ import annotations

from typing import Any

import pytest

from conformance.koordinator_cpuset_decisions import judge

POOLS: dict[str, Any] = {
    "op": "pools",
    "shape": [1, 2, 2, 1],
    "numbering": "adjacent",
    "kubelet": {
        "query": True,
        "policy": "static",
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": "pod",
        "kubeReserved": "500m",
    },
    "checkpoint": {"deleted": {"c0": "3"}},
    "pods": [{"uid": "a", "qos": "LSR", "resourceStatus": {"cpuset": "1"}}],
    "expect": {
        "ls": [{"socket": 0, "node": 0, "cpuset": "0"}, {"socket": 0, "node": 1, "cpuset": "2"}],
        "be": [{"socket": 0, "node": 0, "cpuset": "0-1"}, {"socket": 0, "node": 1, "cpuset": "2"}],
        "podAllocs": [{"uid": "deleted", "cpuset": "3", "managedByKubelet": True}],
        "kubeletReserved": "0",
        "nodeReservation": {},
        "systemQOS": {},
        "topologyPolicy": "RestrictedPodLevel",
    },
}
LS = [{"socket": 0, "node": 0, "cpuset": "0-1"}, {"socket": 0, "node": 1, "cpuset": "4"}]
BE = [{"socket": 0, "node": 0, "cpuset": "0-2"}, {"socket": 0, "node": 1, "cpuset": "4-5"}]
HOOK: dict[str, Any] = {
    "op": "hook",
    "nrt": {"ls": LS, "be": BE, "kubelet": {"policy": "none"}, "systemQOS": {"cpuset": "7"}},
    "cgroupParent": "/kubepods/burstable/podx",
    "beCPUManager": False,
    "expect": {"cpuset": "0-1,4", "cfsQuota": None, "podCFSQuota": None},
}


def test_a_container_with_invalid_cpus_in_the_checkpoint_has_none() -> None:
    assert judge({**POOLS, "checkpoint": {"deleted": {"c0": "3", "c1": "x"}}}).agrees


def test_an_error_agrees_with_a_refusal_of_the_same_input() -> None:
    refused = {"error": True}
    assert judge({**HOOK, "resourceStatus": "bad", "expect": refused}).agrees
    assert not judge({**HOOK, "expect": refused}).agrees
    assert not judge({**HOOK, "resourceStatus": "bad"}).agrees
    unreadable = {"ruleError": True}
    for nrt in ({"ls": "bad"}, {"ls": {"cpuset": "x"}}, {"systemQOS": {"cpuset": "x"}}):
        verdict = judge({**HOOK, "nrt": {**HOOK["nrt"], **nrt}, "expect": unreadable})
        assert verdict.agrees
        assert "annotation node.koordinator.sh/" in verdict.actual["ruleError"]
    assert not judge({**HOOK, "expect": unreadable}).agrees


def test_an_unknown_operation_is_an_error() -> None:
    with pytest.raises(KeyError, match="other"):
        judge({"op": "other", "expect": {}})
