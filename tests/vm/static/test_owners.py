"""LSE and LSR pods with plain Guaranteed ones under a static kubelet."""

from __future__ import annotations

import os
import random
import signal

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.vm.static.company import Company, Spec

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


def test_both_kinds_one_after_the_other_and_over_restarts(company: Company) -> None:
    with company.pods(*MIXED):
        company.check()
        with company.watched() as wrong:
            before = company.pids()["lse-2"]
            os.kill(before, signal.SIGKILL)
            company.wait_for("lse-2", other_than=before)
            company.node.kill_agent()
            company.node.start_agent(company.kubelet_dir)
            company.kubelet.kill()
            company.kubelet.start()
        assert wrong == []
        company.check()


@pytest.mark.parametrize("seed", [1, 2])
def test_both_kinds_at_once(company: Company, seed: int) -> None:
    specs = [*MIXED, Spec("lsr-1", "LSR", 1, "2"), BE]
    random.Random(seed).shuffle(specs)
    with company.watched() as wrong, company.pods(*specs, together=True):
        company.wait_right()
        company.check()
        assert company.node.metric("topolet_containers_short_of_cpus") == 0
    assert wrong == []


def test_claim_outside_the_checkpoint_yields_to_the_kubelets_assignments(
    company: Company,
) -> None:
    """The kubelet starts with its lowest core, and reserves one thread of it. The claim names the
    other thread, and another CPU."""
    claimant = Spec("claimant", "LSE", claim="1-2")
    with company.pods(LS, claimant):
        assert str(company.cpus_now()["claimant"]) == "1-2"
        plain = Spec("plain", cpus=1)
        with company.watched() as wrong:
            company.come(plain)
        assert wrong == []
        now = company.cpus_now()
        (taken,) = now["plain"]
        left = CpuSet([1, 2]) - CpuSet([taken])
        assert now["claimant"] == left
        assert len(left) == 1, "the kubelet takes a CPU that was claimed"
        assert company.node.metric("topolet_containers_short_of_cpus") == 1
