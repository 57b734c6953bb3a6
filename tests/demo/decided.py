"""A snapshot of an agent with one owner."""

from __future__ import annotations

from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.qos import Pool, QoS
from agent.model.snapshot import Owner, PodWanted, Snapshot, Wanted

SNAPSHOT = Snapshot(
    generation=1,
    listed_at=0,
    boot_id="boot",
    kubelet_static=False,
    pools={"ls": (Pool(0, 0, "0"),), "be": (Pool(0, 0, "0"),)},
    owners=(Owner("u1", "demo/lse", QoS.LSE, "1"),),
    pods={
        "u1": PodWanted(
            "demo/lse", QoS.LSE, Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True)
        ),
        "u2": PodWanted("demo/ls", QoS.LS, Wanted(LinuxResources("0"))),
    },
    containers={},
)
