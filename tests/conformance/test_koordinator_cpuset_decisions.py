from __future__ import annotations

from typing import Any

import pytest

from conformance.files import CaseVerdict
from conformance.koordinator_cpuset_decisions import DIFFERENCES, judge
from tests.conformance.vectors import count_verdicts

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
STATIC = {**HOOK["nrt"], "kubelet": {"policy": "static"}}
BESTEFFORT = "/kubepods/besteffort/podx"
GUARANTEED = "/kubepods/podx"


def pools(expect: dict[str, Any] | None = None, **other: Any) -> CaseVerdict:
    return judge({**POOLS, **other, "expect": {**POOLS["expect"], **(expect or {})}})


def hook(cpuset: str | None, quota: int | None = None, **other: Any) -> CaseVerdict:
    expect = {"cpuset": cpuset, "cfsQuota": quota, "podCFSQuota": quota}
    return judge({**HOOK, **other, "expect": expect})


def bound(*nodes: int) -> dict[str, Any]:
    return {"numaNodeResources": [{"node": node, "resources": {"cpu": "1"}} for node in nodes]}


def test_every_part_of_a_report_is_compared() -> None:
    assert pools().agrees
    for key, value in (
        ("ls", None),
        ("be", POOLS["expect"]["ls"]),
        ("podAllocs", None),
        ("kubeletReserved", ""),
        ("nodeReservation", {"reservedCPUs": "0"}),
        ("systemQOS", {"cpuset": "0"}),
        ("topologyPolicy", "None"),
    ):
        verdict = pools({key: value})
        assert (verdict.agrees, verdict.declared) == (False, None), key


def test_empty_pools_and_defaults_are_not_compared() -> None:
    others = {
        "nodeReservation": {"reservedCPUs": "2"},
        "systemQOS": {"cpuset": "", "cpusetExclusive": True},
    }
    node_0 = {"socket": 0, "node": 0}
    empty = {"socket": 0, "node": 1}
    expect = {
        "ls": [{**node_0, "cpuset": "0"}, empty],
        "be": [{**node_0, "cpuset": "0-1"}, empty],
        **others,
    }
    assert pools(expect, **others).agrees


def test_an_unconfigured_kubelet_has_no_policy() -> None:
    expect = {
        "ls": [{"socket": 0, "node": 0, "cpuset": "0"}, {"socket": 0, "node": 1, "cpuset": "2-3"}],
        "be": [
            {"socket": 0, "node": 0, "cpuset": "0-1"},
            {"socket": 0, "node": 1, "cpuset": "2-3"},
        ],
        "podAllocs": None,
        "kubeletReserved": "",
        "topologyPolicy": "None",
    }
    assert pools(expect, kubelet={**POOLS["kubelet"], "query": False}).agrees


def test_a_container_with_invalid_cpus_in_the_checkpoint_has_none() -> None:
    assert pools(checkpoint={"deleted": {"c0": "3", "c1": "x"}}).agrees


OVERLAPPING = [
    {"uid": "a", "qos": "LSR", "resourceStatus": {"cpuset": "0-1"}},
    {"uid": "b", "qos": "LSR", "resourceStatus": {"cpuset": "1-2"}},
]


@pytest.mark.parametrize(
    ("ls", "declared"),
    [
        pytest.param(None, "claimed-twice", id="both claims are missing"),
        pytest.param([{"socket": 0, "node": 0, "cpuset": "0"}], None, id="another difference"),
    ],
)
def test_claims_that_overlap(ls: Any, declared: str | None) -> None:
    verdict = pools({"ls": ls}, pods=OVERLAPPING)
    assert verdict.declared == declared
    assert verdict.actual["ls"] == [{"socket": 0, "node": 1, "cpuset": "2"}]


def test_claims_that_do_not_overlap_are_not_a_declared_difference() -> None:
    assert pools({"ls": None}).declared is None


BE_ON_1 = {"qos": "BE", "resourceStatus": bound(1), "beCPUManager": True}


@pytest.mark.parametrize(
    "verdict",
    [
        pytest.param(lambda: hook("0-1,4", qos="LS"), id="LS"),
        pytest.param(lambda: hook("4,0-1", qos="LS"), id="in any order"),
        pytest.param(lambda: hook("4", qos="LS", resourceStatus=bound(1)), id="NUMA node"),
        pytest.param(
            lambda: hook("4-5", cgroupParent=BESTEFFORT, **BE_ON_1), id="BE on its NUMA node"
        ),
        pytest.param(lambda: hook("0-1,4", qos="BE"), id="BE in a Burstable cgroup"),
        pytest.param(lambda: hook("7", qos="SYSTEM"), id="SYSTEM"),
        pytest.param(lambda: hook("2", -1, qos="LSE", resourceStatus={"cpuset": "2"}), id="owner"),
        pytest.param(
            lambda: hook("2", -1, resourceStatus={"cpuset": "2"}, nrt=None), id="owner, no report"
        ),
        pytest.param(lambda: hook(None, nrt=None, qos="LS"), id="nothing reported"),
    ],
)
def test_agreement_on_containers(verdict: Any) -> None:
    assert verdict().agrees


@pytest.mark.parametrize(
    "verdict",
    [
        pytest.param(lambda: hook("0-2,4-5", qos="LS"), id="another pool"),
        pytest.param(lambda: hook("0-1,4", -1, qos="LS"), id="a quota lifted without reason"),
        pytest.param(
            lambda: hook("2", None, qos="LSE", resourceStatus={"cpuset": "2"}),
            id="a quota that is not changed",
        ),
        pytest.param(lambda: hook(None, qos="LS"), id="LS not changed"),
        pytest.param(lambda: hook("", qos="SYSTEM"), id="SYSTEM not changed"),
        pytest.param(lambda: hook(None), id="not changed with a kubelet without a policy"),
        pytest.param(lambda: hook(None, qos="LS", nrt=STATIC), id="LS left to the kubelet"),
        pytest.param(lambda: hook("0-1,4", qos="BE", nrt=None), id="CPUs without a report"),
    ],
)
def test_disagreement_on_containers(verdict: Any) -> None:
    assert (verdict().agrees, verdict().declared) == (False, None)


@pytest.mark.parametrize(
    ("other", "actual"),
    [
        ({"qos": "BE", "cgroupParent": BESTEFFORT}, "0-2,4-5"),
        ({"cgroupParent": BESTEFFORT}, "0-2,4-5"),
        ({"qos": "BE", "cgroupParent": BESTEFFORT, "resourceStatus": bound(1)}, "4-5"),
        ({"qos": "LSR", "cgroupParent": BESTEFFORT}, "0-1,4"),
        ({"qos": "BE", "nrt": STATIC}, "0-1,4"),
        ({"nrt": STATIC}, "0-1,4"),
        ({"nrt": STATIC, "cgroupParent": GUARANTEED}, "0-1,4"),
    ],
)
def test_cpus_that_another_part_of_koordinator_chooses_are_on_the_pool(
    other: dict[str, Any], actual: str
) -> None:
    verdict = hook(None, **other)
    assert verdict.agrees
    assert verdict.actual["cpuset"] == actual


def test_an_error_agrees_with_a_refusal_of_the_same_input() -> None:
    refused = {"error": True}
    assert judge({**HOOK, "resourceStatus": "bad", "expect": refused}).agrees
    assert not judge({**HOOK, "expect": refused}).agrees
    assert not hook("0-1,4", resourceStatus="bad").agrees
    unreadable = {"ruleError": True}
    for nrt in ({"ls": "bad"}, {"ls": {"cpuset": "x"}}, {"systemQOS": {"cpuset": "x"}}):
        verdict = judge({**HOOK, "nrt": {**HOOK["nrt"], **nrt}, "expect": unreadable})
        assert verdict.agrees
        assert "annotation node.koordinator.sh/" in verdict.actual["ruleError"]
    assert not judge({**HOOK, "expect": unreadable}).agrees


NO_LS = {**HOOK["nrt"], "ls": [{"socket": 0, "node": 0}, LS[1]]}


@pytest.mark.parametrize(
    ("cpuset", "other", "declared", "actual"),
    [
        pytest.param(",4", {"qos": "LS", "nrt": NO_LS}, "stray-comma", "4", id="comma"),
        pytest.param(",5", {"qos": "LS", "nrt": NO_LS}, None, "4", id="comma, another CPU"),
        pytest.param(
            "",
            {"qos": "LS", "nrt": NO_LS, "resourceStatus": bound(0)},
            "empty-pool",
            "4",
            id="NUMA node without CPUs",
        ),
        pytest.param(
            ",",
            {"qos": "LS", "nrt": {**NO_LS, "ls": [NO_LS["ls"][0]] * 2}},
            "empty-pool",
            None,
            id="only commas",
        ),
        pytest.param(
            "", {"qos": "LS", "nrt": {**NO_LS, "ls": []}}, "empty-pool", None, id="no pool"
        ),
        pytest.param(
            "",
            {"qos": "SYSTEM", "resourceStatus": bound(9)},
            "empty-pool",
            "7",
            id="SYSTEM on an unknown NUMA node",
        ),
        pytest.param("4-5", BE_ON_1, "be-by-label", "4", id="BE by its label"),
        pytest.param(
            "0-1,4",
            {**BE_ON_1, "beCPUManager": False},
            "be-by-label",
            "4",
            id="BE by its label, without its NUMA node",
        ),
        pytest.param("0-2,4-5", {"qos": "BE"}, None, "0-1,4", id="BE on every BE pool"),
        pytest.param("0", {"qos": "BE"}, None, "0-1,4", id="BE on part of the LS pool"),
    ],
)
def test_declared_differences(
    cpuset: str, other: dict[str, Any], declared: str | None, actual: str | None
) -> None:
    verdict = hook(cpuset, **other)
    assert (verdict.agrees, verdict.declared) == (False, declared)
    assert verdict.actual["cpuset"] == actual


@pytest.mark.parametrize(
    ("qos", "nrt", "expect", "agrees", "declared"),
    [
        ("LS", HOOK["nrt"], {"cpuset": "0-1,4"}, True, None),
        ("LS", HOOK["nrt"], {"cpuset": "0"}, False, None),
        ("LS", HOOK["nrt"], {"error": True}, False, None),
        ("LS", NO_LS, {"cpuset": ",4"}, False, "stray-comma"),
        ("LS", None, {"cpuset": None}, True, None),
        ("LS", None, {"cpuset": "0"}, False, None),
        ("BE", HOOK["nrt"], {"error": True}, True, None),
        ("BE", HOOK["nrt"], {"cpuset": "0-2"}, False, None),
        ("", HOOK["nrt"], {"error": True}, True, None),
        ("LS", {"ls": "bad"}, {"ruleError": True}, True, None),
    ],
)
def test_host_application(
    qos: str, nrt: Any, expect: dict[str, Any], agrees: bool, declared: str | None
) -> None:
    verdict = judge({"op": "hostapp", "qos": qos, "nrt": nrt, "expect": expect})
    assert (verdict.agrees, verdict.declared) == (agrees, declared)


def test_an_unknown_operation_is_an_error() -> None:
    with pytest.raises(KeyError, match="other"):
        judge({"op": "other", "expect": {}})


def test_koordinators_vectors() -> None:
    counted = count_verdicts("koordinator-cpuset-decisions", judge)
    unlisted = sum(counted[each.name] for each in DIFFERENCES if not each.listed)
    assert 0 < unlisted <= 0.02 * counted.total()


def test_claim_next_to_a_static_kubelets_checkpoint_is_a_declared_difference() -> None:
    """Koordinator's pools exclude the CPUs of the annotation, and contain those that the kubelet
    assigned."""
    verdict = pools(checkpoint={"a": {"c0": "2"}, "deleted": {"c0": "3"}})
    assert verdict.declared == "kubelet-decides"
    assert verdict.actual["podAllocs"][0] == {
        "namespace": "default",
        "name": "pod-a",
        "uid": "a",
        "cpuset": "2",
        "managedByKubelet": True,
    }
    assert [each["cpuset"] for each in verdict.actual["ls"]] == ["0-1"]
    assert [each["cpuset"] for each in verdict.actual["be"]] == ["0-1", "2"]


def test_other_differences_with_a_static_kubelet_are_disagreements() -> None:
    wrong = [{"socket": 0, "node": 0, "cpuset": "0"}]
    verdict = pools({"ls": wrong}, checkpoint={"a": {"c0": "2"}, "deleted": {"c0": "3"}})
    assert verdict.declared is None
    assert not verdict.agrees
