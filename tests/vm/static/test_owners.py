"""LSE and LSR pods with plain Guaranteed ones under a static kubelet."""

from __future__ import annotations

import os
import random
import signal

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.vm.static.workload import Spec, Workload

pytestmark = pytest.mark.timeout(1800)

LS = Spec("ls", "LS")
BE = Spec("be", "BE")
MIXED = (
    Spec("plain-2", cpus=2),
    Spec("lse-2", "LSE", 2, "2-3"),
    Spec("plain-3", cpus=3),
    Spec("lse-4", "LSE", 4, "4-7"),
    LS,
)


def test_owners_and_guaranteed_pods_one_after_the_other_with_restarts(workload: Workload) -> None:
    with workload.pods(*MIXED):
        workload.check()
        with workload.record_violations() as violations:
            before = workload.pids()["lse-2"]
            os.kill(before, signal.SIGKILL)
            workload.wait_for("lse-2", other_than=before)
            workload.node.kill_agent()
            workload.node.start_agent(workload.kubelet_dir)
            workload.kubelet.kill()
            workload.kubelet.start()
        assert violations == []
        workload.check()


@pytest.mark.parametrize("seed", [1, 2])
def test_owners_and_guaranteed_pods_created_together(workload: Workload, seed: int) -> None:
    specs = [*MIXED, Spec("lsr-1", "LSR", 1, "2"), BE]
    random.Random(seed).shuffle(specs)
    with workload.record_violations() as violations, workload.pods(*specs, together=True):
        workload.wait_until_correct()
        workload.check()
        assert workload.node.metric("topolet_containers_short_of_cpus") == 0
    assert violations == []


def test_claim_outside_the_checkpoint_yields_to_the_kubelets_assignments(
    workload: Workload,
) -> None:
    """The kubelet starts with its lowest core, and reserves one thread of it. The claim names the
    other thread, and another CPU."""
    claimant = Spec("claimant", "LSE", claim="1-2")
    with workload.pods(LS, claimant):
        assert str(workload.current_cpus()["claimant"]) == "1-2"
        plain = Spec("plain", cpus=1)
        with workload.record_violations() as violations:
            workload.add(plain)
        assert violations == []
        now = workload.current_cpus()
        (taken,) = now["plain"]
        left = CpuSet([1, 2]) - CpuSet([taken])
        assert now["claimant"] == left
        assert len(left) == 1, "the kubelet takes a CPU that was claimed"
        assert workload.node.metric("topolet_containers_short_of_cpus") == 1
