from __future__ import annotations

import logging

import pytest

from agent.allocate.reserved_cpus import KubeletCpus
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.node.kubelet_view import ResourceClaimView


def claimed(pod: str, cpus: str) -> list[ReportedDevices]:
    cdi = (f"dra.k8s.io/cpu=claim-{pod}",)
    return [
        ReportedDevices(
            pod, "main", "dra.cpu", ("cpudev0",), HoldingSource.CLAIM, f"ns/{pod}", cdi=cdi
        ),
        ReportedDevices(pod, "main", "dra.cpu", (cpus,), HoldingSource.ENVIRONMENT, pod),
    ]


def test_resource_claims_are_added_to_the_kubelets_cpus() -> None:
    kubelet = KubeletCpus(True, {"k": CpuSet([0])})
    view = ResourceClaimView()
    assert view.with_claims(kubelet, ()) == kubelet
    found = view.with_claims(kubelet, claimed("a", "2-3"))
    assert found == KubeletCpus(True, {"k": CpuSet([0])}, {}, {"a": {"main": CpuSet([2, 3])}})


def test_cpus_of_two_pods_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    view = ResourceClaimView()
    for _ in range(3):
        view.with_claims(
            KubeletCpus(), [*claimed("a", "2-3"), *claimed("b", "3"), *claimed("c", "x")]
        )
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", "claims: pod c, main: CPUs x in a variable: 'x' does not name the CPUs"),
        ("WARNING", "claims: pod b has CPUs 3, which pod a has"),
    ]
