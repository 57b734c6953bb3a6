"""What people are told about colocation."""

from __future__ import annotations

import json

from agent.allocate.colocation.be_suppress import BeAmount, Suppression
from agent.model.cpu.cpuset import CpuSet
from agent.model.linux_resources import CpuQuota
from agent.model.settings.feature_modes import FeatureMode
from agent.view.colocation import as_json, as_text, shown
from agent.view.features import ShownFeature

AMOUNT = BeAmount(usable=6000, other_pods=2500, applications=0, machine=800, least=None)


def test_the_terms_of_what_be_pods_get_are_told() -> None:
    features = (
        ShownFeature("cpu-suppression", FeatureMode.ACT, 0),
        ShownFeature("cpu-priority", FeatureMode.OBSERVE, 4, "", 3, ("/a cpu.idle: 0 -> 1",)),
        ShownFeature("cpu-burst", FeatureMode.OFF, 0),
        ShownFeature("memory-qos", FeatureMode.ACT, 0, "this machine has cgroup v1"),
    )
    cpus = Suppression(cpus=CpuSet.parse("2-4"), amount=AMOUNT)
    told = shown(features, cpus, ("/a cpu.idle: why",), suppresses=True)
    assert as_text(told) == (
        "Colocation on this node:\n"
        "  cpu-suppression  act      nothing\n"
        "  cpu-priority     observe  would have 4 files; it would write 3 of them:\n"
        "    /a cpu.idle: 0 -> 1\n"
        "    and 2 more\n"
        "  cpu-burst        off\n"
        "  memory-qos       act      nothing; this machine has cgroup v1\n"
        "CPU of BE pods:\n"
        "  share of the node that may be in use      6000\n"
        "  used by pods that are not BE             -2500\n"
        "  used by applications of the host             0\n"
        "  used by the machine, or reserved for it   -800\n"
        "  left, in milli-CPU                        2700\n"
        "  they have CPUs 2-4 of their pool\n"
        "Not written:\n"
        "  /a cpu.idle: why\n"
    )
    assert json.loads(as_json(told))["amount"]["machine"] == 800


def test_what_suppression_would_do_is_told_as_such() -> None:
    least = BeAmount(usable=6000, other_pods=6000, applications=0, machine=800, least=1000)
    quota = Suppression(CpuSet.parse("1"), CpuQuota(100_000), least)
    text = as_text(shown((), quota, (), suppresses=False))
    assert "  they would have CPUs 1 of their pool\n" in text
    assert "  at least, by strategy                     1000\n" in text
    assert "  they would have 1000 milli-CPU of quota together\n" in text
