from __future__ import annotations

from pathlib import Path

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.qos import QoS
from agent.model.snapshot import Owner
from agent.node.doctor import (
    REMEDIES,
    DriftKind,
    Finding,
    NodeCode,
    ObservedContainer,
    findings,
)

LSE = Owner("lse", "ns/lse", QoS.LSE, "2-3")
LSR = Owner("lsr", "ns/lsr", QoS.LSR, "4-5")


def seen(uid: str, qos: QoS = QoS.LS, problem: str = "", **cpus: str) -> ObservedContainer:
    """By default without drift."""
    sets = {name: CpuSet.parse(text) for name, text in cpus.items()}
    return ObservedContainer(uid, f"ns/{uid} main", qos, problem=problem, **sets)


@pytest.mark.parametrize(
    "container",
    [
        seen("lse", QoS.LSE, claimed="2-3", wanted="2-3", group="2-3", processes="2-3"),
        seen("a", wanted="0-1", group="0-1", processes="0-1"),
        seen("a", wanted="0-1", group="0-1", processes="1"),
        seen("be", QoS.BE, wanted="0-1,4-5", group="0-1,4-5"),
        seen("g", kubelet="6-7", group="6-7"),
        seen("quiet", group="0-1"),
    ],
)
def test_no_drift(container: ObservedContainer) -> None:
    assert findings([container], [LSE, LSR]) == ()


@pytest.mark.parametrize(
    ("container", "kind", "expected", "found", "detail"),
    [
        (seen("a", wanted="0-1", group="0"), DriftKind.GROUP, "0-1", "0", ""),
        (seen("a", group="0", processes="0-1"), DriftKind.PROCESSES, "0", "0-1", ""),
        (seen("a"), DriftKind.NO_GROUP, "", "", ""),
        (seen("g", kubelet="6-7", group="0-7"), DriftKind.KUBELET, "6-7", "0-7", ""),
        (seen("new", claimed="0", group="0"), DriftKind.CLAIM_UNSEEN, "0", "0", ""),
        (
            seen("bad", problem="CPUs 9 do not exist", wanted="0", group="0"),
            DriftKind.CLAIM,
            "",
            "0",
            "CPUs 9 do not exist",
        ),
        (
            seen("lse", QoS.LSE, claimed="2-3,8", wanted="2-3", group="2-3"),
            DriftKind.CLAIM,
            "2-3,8",
            "2-3",
            "CPUs 8 are not online",
        ),
        (seen("a", group="1-2"), DriftKind.OVERLAP, "", "2", "ns/lse owns them"),
        (seen("be", QoS.BE, group="3-4"), DriftKind.OVERLAP, "", "3", "ns/lse owns them"),
    ],
)
def test_drift(
    container: ObservedContainer, kind: DriftKind, expected: str, found: str, detail: str
) -> None:
    assert Finding(kind, container.title, expected, found, detail) in findings(
        [container], [LSE, LSR]
    )


def test_the_kubelets_container_on_owned_cpus_gives_two_findings() -> None:
    got = findings([seen("g", kubelet="6-7", group="2-7")], [LSE, LSR])
    assert [each.kind for each in got] == [DriftKind.KUBELET, DriftKind.OVERLAP, DriftKind.OVERLAP]


def test_every_finding_about_the_node_has_a_remedy_and_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    assert set(REMEDIES) == set(NodeCode)
    for code in NodeCode:
        assert f"| `{code}` |" in page
