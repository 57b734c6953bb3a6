"""Whose threads run only where no others want to."""

from __future__ import annotations

import pytest

from agent.allocate.colocation.priority import BVT, IDLE, KernelPriority, priority
from agent.model.node_slo import CpuQos
from agent.model.pod.qos import QoS

OFF = CpuQos(enable=False, group_identity=-1, sched_idle=1)
BATCH = CpuQos(enable=True, group_identity=-1)
IDLES = CpuQos(enable=True, sched_idle=1)
SERVICE = CpuQos(enable=True, group_identity=2)


@pytest.mark.parametrize(
    ("qos", "cpu_qos", "ability", "wanted"),
    [
        (QoS.BE, OFF, KernelPriority.IDLE_GROUPS, {}),
        (QoS.BE, BATCH, KernelPriority.IDLE_GROUPS, {IDLE: "1"}),
        (QoS.BE, IDLES, KernelPriority.IDLE_GROUPS, {IDLE: "1"}),
        (QoS.BE, CpuQos(enable=True), KernelPriority.IDLE_GROUPS, {}),
        (QoS.LS, IDLES, KernelPriority.IDLE_GROUPS, {}),
        (QoS.LS, SERVICE, KernelPriority.IDLE_GROUPS, {}),
        (QoS.BE, BATCH, KernelPriority.GROUP_IDENTITY, {BVT: "-1"}),
        (QoS.LS, SERVICE, KernelPriority.GROUP_IDENTITY, {BVT: "2"}),
        (QoS.LS, OFF, KernelPriority.GROUP_IDENTITY, {}),
        (QoS.BE, BATCH, KernelPriority.NEITHER, {}),
    ],
)
def test_only_be_pods_are_idle(
    qos: QoS, cpu_qos: CpuQos, ability: KernelPriority, wanted: dict[str, str]
) -> None:
    assert priority(qos, cpu_qos, ability) == wanted
