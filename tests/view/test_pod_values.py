"""Why files of a pod's cgroups have their values."""

from __future__ import annotations

import json

import pytest

from agent.allocate.colocation.be_suppress import BeAmount, Suppression
from agent.cgroup import limits
from agent.cgroup.hierarchy import OOM_SCORE_ADJ
from agent.model.cpu.cpuset import CpuSet
from agent.model.node_slo import (
    KIND,
    CpuBurst,
    CpuQos,
    IoBlock,
    MemoryQos,
    NodeSlo,
    QosClass,
    ResourceQos,
    ResourceThreshold,
)
from agent.model.pod.annotations import CPU_BURST, OOM_SCORES, RESCTRL
from agent.model.pod.qos import QoS
from agent.model.settings.feature_modes import FeatureMode
from agent.usage.pod_strategies import PodResctrl, PodStrategies
from agent.usage.strategies import Strategies
from agent.view.colocation import shown
from agent.view.features import ShownFeature
from agent.view.pod_values import CPUSET, FileValue, PodValues, as_json, as_text, explained

BATCH = QosClass(
    cpu_qos=CpuQos(enable=True, group_identity=-1), memory_qos=MemoryQos(enable=True, wmark_ratio=9)
)
SLO = NodeSlo(
    resource_used_threshold_with_be=ResourceThreshold(enable=True),
    resource_qos_strategy=ResourceQos(be_class=BATCH),
    cpu_burst_strategy=CpuBurst(policy="auto"),
)
FROM_OBJECT = Strategies(SLO, {"resourceQOSStrategy": KIND, "cpuBurstStrategy": "pool fast"})
OWN = PodStrategies(cpu_burst=CpuBurst(policy="cfsQuotaBurstOnly"), own=(CPU_BURST,))


def reason(strategies: Strategies, qos: QoS, file: str, content: str = "7") -> str:
    value = FileValue("", file, content, content)
    text = as_text(explained("ns/p", qos, strategies, [value]))
    assert text.startswith(f"Pod ns/p ({qos}) has of Topolet:\n  {file} {content}\n    ")
    return text.splitlines()[-1].strip()


@pytest.mark.parametrize(
    ("qos", "file", "expected"),
    [
        (
            QoS.BE,
            limits.IDLE,
            "cpu-priority: resourceQOSStrategy.beClass.cpuQOS (NodeSLO): groupIdentity -1, "
            "schedIdle 0",
        ),
        (
            QoS.BE,
            CPUSET,
            "cpu-suppression: resourceUsedThresholdWithBE (default): cpuSuppressPolicy cpuset, "
            "cpuSuppressThresholdPercent 65",
        ),
        (
            QoS.BE,
            limits.CORE_GROUP,
            "core-scheduling: resourceQOSStrategy.beClass.cpuQOS (NodeSLO): coreExpeller False",
        ),
        (QoS.LS, OOM_SCORE_ADJ, f"oom-score: {OOM_SCORES} (annotation of the pod)"),
        (QoS.BE, limits.MAX, "the class of the pod, its CPUs, NUMA nodes and batch resources"),
        (
            QoS.LS,
            limits.MAX_BURST,
            "cpu-burst: cpuBurstStrategy (pool fast of --slo-config): policy auto, "
            "cpuBurstPercent 1000",
        ),
        (
            QoS.BE,
            "blkio.throttle.read_bps_device 8:0",
            "disk-qos: resourceQOSStrategy.beClass.blkioQOS (NodeSLO)",
        ),
        (QoS.LS, limits.WEIGHT, "the class of the pod, its CPUs, NUMA nodes and batch resources"),
        (
            QoS.LSR,
            limits.MEMORY_LOW,
            "memory-qos: resourceQOSStrategy.lsrClass.memoryQOS (NodeSLO): lowLimitPercent 0",
        ),
    ],
)
def test_a_value_has_a_strategy_and_its_origin(qos: QoS, file: str, expected: str) -> None:
    assert reason(FROM_OBJECT, qos, file) == expected


def test_it_is_said_whether_the_pod_may_be_evicted() -> None:
    values = PodValues("ns/p", QoS.BE, (), evictions="It is never evicted: it is critical.")
    assert as_text(values).endswith("\nIt is never evicted: it is critical.\n")


def test_an_annotation_is_stronger_than_the_strategy_of_the_node() -> None:
    strategies = Strategies(SLO, FROM_OBJECT.origins, pods={"ns/p": OWN})
    assert reason(strategies, QoS.LS, limits.QUOTA) == (
        "cpu-burst: koordinator.sh/cpuBurst (annotation of the pod): policy cfsQuotaBurstOnly, "
        "cfsQuotaBurstPercent 300, cfsQuotaBurstPeriodSeconds -1"
    )
    disks = Strategies(SLO, pods={"ns/p": PodStrategies(blocks=(IoBlock(),))})
    expected = "disk-qos: koordinator.sh/blkioQOS (annotation of the pod)"
    assert reason(disks, QoS.BE, "io.max 8:0 rbps") == expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("/koordlet-p", f"resctrl: {RESCTRL} (annotation of the pod)"),
        (
            "/LS",
            "resctrl: resourceQOSStrategy.lsClass.resctrlQOS (NodeSLO): catRangeStartPercent 0, "
            "catRangeEndPercent 100, mbaPercent 100",
        ),
    ],
)
def test_a_pod_without_room_for_a_group_of_its_own_has_that_of_its_class(
    group: str, expected: str
) -> None:
    own = PodStrategies(resctrl=PodResctrl(), own=(RESCTRL,))
    strategies = Strategies(SLO, FROM_OBJECT.origins, pods={"ns/p": own})
    assert reason(strategies, QoS.LS, limits.RESCTRL_GROUP, group) == expected


def test_what_a_file_gets_back_is_told() -> None:
    values = [FileValue("main", limits.IDLE, "1", "0"), FileValue("", CPUSET, None, "")]
    pod = explained("ns/p", QoS.BE, FROM_OBJECT, values)
    lines = as_text(pod).splitlines()
    assert lines[1] == "  container main: cpu.idle 1, and gets 0 back"
    assert lines[3] == "  cpuset.cpus unreadable, and gets nothing back"
    assert json.loads(as_json(pod))["values"][0]["terms"] == {"groupIdentity": -1, "schedIdle": 0}


def test_the_terms_of_suppression_are_those_of_be_pods() -> None:
    amount = BeAmount(usable=6000, other_pods=2500, applications=0, machine=800, least=None)
    suppression = Suppression(cpus=CpuSet.parse("2-4"), amount=amount)
    feature = ShownFeature("cpu-suppression", FeatureMode.ACT, 0)
    last = shown((feature,), suppression, (), suppresses=True)
    texts = {
        qos: as_text(explained("ns/p", qos, FROM_OBJECT, [], last)) for qos in (QoS.BE, QoS.LS)
    }
    assert "  used by pods that are not BE             -2500\n" in texts[QoS.BE]
    assert texts[QoS.BE].endswith("  they have CPUs 2-4 of their pool\n")
    assert texts[QoS.LS].count("\n") == 1


def test_a_pod_without_values_of_topolet() -> None:
    text = as_text(explained("ns/p", QoS.LS, Strategies(), []))
    assert text == "Pod ns/p (LS) has no value of Topolet in its cgroups.\n"
