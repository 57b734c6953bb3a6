"""What is in force for a pod. The values of memory QoS agree with koordlet's answers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.model.node_slo import CpuBurst, CpuQos, MemoryQos, NetworkQos, NodeSlo, node_slo
from agent.model.pod.annotations import (
    BLKIO_QOS,
    CPU_BURST,
    CPU_QOS,
    MEMORY_QOS,
    NETWORK_QOS,
    OOM_SCORES,
    OOM_SCORES_SPEC,
    RESCTRL,
    STRATEGY_BYTES,
)
from agent.model.pod.apiobjects import ApiPod, Phase
from agent.model.pod.qos import QOS_LABEL, KubeClass, QoS
from agent.usage.pod_strategies import OVERRIDDEN, PodStrategies, of_pod

SPEC: dict[str, Any] = {
    "cpuBurstStrategy": {"policy": "auto", "cpuBurstPercent": 200},
    "resourceQOSStrategy": {
        "lsClass": {
            "cpuQOS": {"enable": True},
            "memoryQOS": {"enable": True, "lowLimitPercent": 80},
            "networkQOS": {"ingressLimit": 50, "egressLimit": 40},
        },
        "systemClass": {"memoryQOS": {"enable": True, "priority": 7}},
    },
}
SLO, _ = node_slo({"spec": SPEC})


def pod(qos: QoS, **annotations: Any) -> ApiPod:
    """A pod whose annotations are JSON, or text as it is; by the names in OF_NAMES."""
    texts = {
        OF_NAMES[name]: value if isinstance(value, str) else json.dumps(value)
        for name, value in annotations.items()
    }
    labels = {QOS_LABEL: qos.value}
    kube_class: KubeClass = "besteffort" if qos is QoS.BE else "burstable"
    return ApiPod("u", "ns", "p", "n", Phase.RUNNING, labels, texts, kube_class, 0)


OF_NAMES = {
    "burst": CPU_BURST,
    "memory": MEMORY_QOS,
    "cpu": CPU_QOS,
    "blkio": BLKIO_QOS,
    "network": NETWORK_QOS,
    "resctrl": RESCTRL,
    "oom": OOM_SCORES,
    "oom_of": OOM_SCORES_SPEC,
}


def in_force(qos: QoS = QoS.LS, slo: NodeSlo = SLO, **annotations: Any) -> PodStrategies:
    strategies, troubles = of_pod(slo, pod(qos, **annotations))
    assert troubles == ()
    return strategies


@pytest.mark.parametrize(
    ("qos", "memory"),
    [
        (QoS.LSE, MemoryQos()),
        (QoS.LS, SLO.resource_qos_strategy.ls_class.memory_qos),
        (QoS.BE, MemoryQos()),
        (QoS.SYSTEM, MemoryQos(True, priority=7)),
    ],
)
def test_a_pod_without_annotations_has_the_strategies_of_its_class(
    qos: QoS, memory: MemoryQos
) -> None:
    strategies = in_force(qos)
    assert strategies.memory_qos == memory
    assert strategies.cpu_burst == CpuBurst("auto", 200)
    assert strategies.own == ()


def test_fields_of_the_burst_override_those_of_the_node() -> None:
    burst = {"cfsQuotaBurstPercent": 150, "policy": None, "sharePoolThresholdPercent": 1}
    strategies = in_force(burst=burst)
    assert strategies.cpu_burst == CpuBurst("auto", 200, 150)
    assert strategies.own == (CPU_BURST,)


LOW_50 = {"lowLimitPercent": 50}
AUTO = MemoryQos(True, wmark_ratio=95, wmark_scale_permill=20, wmark_min_adj=-25)
AUTO_BE = msgspec.structs.replace(AUTO, wmark_min_adj=50)


@pytest.mark.parametrize(
    ("qos", "annotation", "memory"),
    [
        (QoS.LS, {"policy": "auto", **LOW_50}, msgspec.structs.replace(AUTO, low_limit_percent=50)),
        (QoS.LSE, {"policy": "auto"}, AUTO),
        (QoS.BE, {"policy": "auto"}, AUTO_BE),
        (QoS.SYSTEM, {"policy": "auto"}, MemoryQos(True)),
        (QoS.LS, {"policy": "none", **LOW_50}, MemoryQos()),
        (QoS.LS, LOW_50, msgspec.structs.replace(AUTO, low_limit_percent=50)),
        (QoS.BE, {"policy": "default", **LOW_50}, MemoryQos(True, low_limit_percent=50)),
        (QoS.BE, {"policy": "", **LOW_50}, MemoryQos(True, low_limit_percent=50)),
    ],
)
def test_memory_follows_the_policy_of_the_pod(
    qos: QoS, annotation: dict[str, Any], memory: MemoryQos
) -> None:
    assert in_force(qos, memory=annotation).memory_qos == memory


def test_only_pods_of_the_class_ls_have_a_group_identity_of_their_own() -> None:
    cpu_qos = {"enable": True, "groupIdentity": 1}
    assert in_force(cpu=cpu_qos).cpu_qos == CpuQos(True, 1)
    assert in_force(cpu={"groupIdentity": 1}).cpu_qos == CpuQos()
    of_be = in_force(QoS.BE, cpu=cpu_qos)
    assert (of_be.cpu_qos, of_be.own) == (CpuQos(), ())


def test_limits_of_the_network_replace_those_of_the_class() -> None:
    assert in_force(network={"ingressLimit": "10M"}).network_qos == NetworkQos(
        ingress_limit="10M", egress_limit=40
    )


def test_disks_and_resctrl_are_of_the_pod_alone() -> None:
    cache = {"schemata": {"range": [0, 30]}, "schemataPerCache": [{"cacheID": 1, "range": [5, 9]}]}
    strategies = in_force(
        QoS.BE,
        blkio={"blocks": [{"name": "/dev/a", "type": "device", "ioCfg": {"readIOPS": 9}}]},
        resctrl={"llc": cache, "mb": {"schemata": {"percent": 20}}},
    )
    (block,) = strategies.blocks
    assert (block.name, block.io_cfg.read_iops) == ("/dev/a", 9)
    resctrl = strategies.resctrl
    assert resctrl is not None
    assert resctrl.llc is not None
    assert resctrl.llc.schemata is not None
    assert resctrl.llc.schemata.range == (0, 30)
    assert resctrl.llc.schemata_per_cache[0].cache_id == 1
    assert set(strategies.own) == {BLKIO_QOS, RESCTRL}


@pytest.mark.parametrize(
    ("annotations", "place"),
    [
        ({"burst": "{bad"}, "is not JSON"),
        ({"burst": {"cpuBurstPercent": 0}}, "`$.cpuBurstPercent`"),
        ({"memory": {"policy": "much"}}, "`$.policy`"),
        ({"memory": {"priority": 13}}, "`$.priority`"),
        ({"cpu": {"enable": "yes"}}, "`$.enable`"),
        ({"network": {"ingressLimit": "fast"}}, "`$.ingressLimit`"),
        ({"blkio": {"blocks": [{}] * 17}}, "`$.blocks`"),
        ({"resctrl": {"llc": {"schemata": {"range": [0, 101]}}}}, "`$.llc.schemata.range[1]`"),
        ({"resctrl": {"mb": {"schemataPerCache": [{}] * 65}}}, "`$.mb.schemataPerCache`"),
        ({"oom": "-1001"}, "`int` >= -1000"),
        ({"oom": "high"}, "is not JSON"),
        ({"oom": "1" * 17}, "has more than 16 bytes"),
        ({"oom_of": {"main": 1001}}, "`$[...]`"),
        ({"oom_of": dict.fromkeys(map(str, range(257)), 1)}, "length <= 256"),
        ({"memory": "{" + " " * 2_000}, "has more than 1024 bytes"),
    ],
)
def test_a_bad_annotation_is_named_and_leaves_the_strategy_of_the_node(
    annotations: dict[str, Any], place: str
) -> None:
    strategies, (trouble,) = of_pod(SLO, pod(QoS.LS, **annotations))
    (name,) = annotations
    assert trouble.startswith(f"pod ns/p: annotation {OF_NAMES[name]}: ")
    assert place in trouble
    assert strategies == in_force()


def test_each_annotation_overrides_one_field() -> None:
    assert OVERRIDDEN.keys() == STRATEGY_BYTES.keys()
    assert set(OVERRIDDEN.values()) < set(PodStrategies.__struct_fields__)
