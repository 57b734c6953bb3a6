"""Whose threads run only where no others want to: the counterpart of Koordinator's group identity
(`cpu.bvt_warp_ns` of Anolis' kernel) on mainline kernels is `cpu.idle`.

It is set on the groups of pods, never on the kubelet's group of all BE pods: the kernel refuses any
weight for a group that is idle, and a kubelet that can't set the weight of that group does not
start (koordinator-sh/koordinator issue 2732)."""

from __future__ import annotations

import enum
from typing import Final

from agent.model.node_slo import CpuQos
from agent.model.pod.qos import QoS

BVT: Final = "cpu.bvt_warp_ns"
IDLE: Final = "cpu.idle"


class KernelPriority(enum.StrEnum):
    """What the kernel has."""

    GROUP_IDENTITY = "group-identity"
    IDLE_GROUPS = "idle-groups"
    NEITHER = "neither"


def priority(qos: QoS, cpu_qos: CpuQos, ability: KernelPriority) -> dict[str, str]:
    """What the files of the pod's group shall have; empty if they stay.

    `cpu_qos`: in force for the pod."""
    if not cpu_qos.enable:
        return {}
    if ability is KernelPriority.GROUP_IDENTITY:
        return {BVT: str(cpu_qos.group_identity)}
    wanted = cpu_qos.sched_idle == 1 or cpu_qos.group_identity < 0
    if ability is KernelPriority.IDLE_GROUPS and qos is QoS.BE and wanted:
        return {IDLE: "1"}
    return {}
