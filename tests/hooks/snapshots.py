"""Snapshots of a node with an owner, and of one with devices."""

from __future__ import annotations

import msgspec

from agent.model.devices.visibility import (
    DeviceNode,
    NodeDevice,
    NodeVisibility,
    Visibility,
    VisibleGpu,
)
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.qos import Pool, Pools, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted

BOOT = "this-boot"


def pools(cpus: str) -> Pools:
    """Pools of all classes with these CPUs, on one NUMA node."""
    return {"ls": (Pool(0, 0, cpus),), "be": (Pool(0, 0, cpus),)}


EMPTY = Snapshot(1, 0, BOOT, False, pools("0-3"), (), {}, {})
OWNED = msgspec.structs.replace(
    EMPTY,
    pools=pools("0,2-3"),
    owners=(Owner("own", "ns/own", QoS.LSE, "1"),),
    pods={
        "own": PodWanted(
            "ns/own", QoS.LSE, Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True)
        )
    },
    containers={
        "c-own": Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True),
        "c-kubelet": Wanted(),
    },
)
"""The LSE pod `own` owns CPU 1 of 4."""

CARD = VisibleGpu("GPU-own", "1", (DeviceNode("/dev/nvidia1", 195, 1),))
WITH_DEVICES = msgspec.structs.replace(
    EMPTY,
    pods={
        "own": PodWanted("ns/own", QoS.LS, Wanted(LinuxResources("0-3"))).with_visible(
            Visibility(()), {"main": Visibility((CARD,))}
        ),
        "lost": PodWanted("ns/lost", QoS.LS, Wanted(LinuxResources("0-3"))).with_visible(
            Visibility(refused="gpu 7 is not on this node"), {}
        ),
    },
    devices=NodeVisibility(
        (
            NodeDevice("GPU-other", "0", nodes=("/dev/nvidia0",), holders=("other",)),
            NodeDevice("GPU-own", "1", nodes=("/dev/nvidia1",), holders=("own",)),
            NodeDevice("GPU-free", "2", nodes=("/dev/nvidia2",)),
        )
    ),
)
"""Container `main` of pod `own` sees GPU-own, its other containers see no GPU. The GPU that is
allocated to pod `lost` is not on the node."""
