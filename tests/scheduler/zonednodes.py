"""Nodes whose kubelets place plain pods on single NUMA nodes, and the agents that report them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.model.nrt import fingerprint, resource_topology
from agent.model.nrt.resource_topology import (
    FINGERPRINT_METHOD,
    Amounts,
    NodeTopology,
    Version,
    Zone,
)

Object = dict[str, Any]
Zones = Mapping[int, Mapping[str, int]]

NIC = "vendor.com/nic"
GIB = 1 << 30


def pod(
    name: str,
    *containers: Mapping[str, str],
    limited: bool = True,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """Guaranteed if `limited` and if it requests CPU and memory; one container for each request."""
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": dict(labels or {}),
            "annotations": {},
        },
        "spec": {
            "nodeName": "",
            "containers": [
                {
                    "name": f"c{place}",
                    "resources": {
                        "requests": dict(each),
                        "limits": dict(each) if limited else {},
                    },
                }
                for place, each in enumerate(containers or ({},))
            ],
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def node(name: str, zones: Zones) -> Object:
    names = sorted({each for zone in zones.values() for each in zone})
    totals = {each: sum(zone.get(each, 0) for zone in zones.values()) for each in names}
    if "cpu" in totals:
        totals["cpu"] //= 1000
    allocatable = {each: str(amount) for each, amount in totals.items()}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "status": {"allocatable": {"pods": "110", **allocatable}},
    }


def topology(
    name: str,
    zones: Zones,
    used: Zones | None = None,
    pods: tuple[str, ...] | None = (),
    *,
    policy: str = "single-numa-node",
    scope: str = "container",
    method: str = "all",
) -> Object:
    """`used`: the amounts used of the zones. `pods`: the names in the fingerprint; None: the report
    has none."""
    taken = used or {}
    pods_fingerprint = None if pods is None else fingerprint.of(("default", each) for each in pods)
    return resource_topology.encode(
        NodeTopology(
            name,
            tuple(
                Zone(
                    zone,
                    {
                        each: Amounts(total, total, total - taken.get(zone, {}).get(each, 0))
                        for each, total in amounts.items()
                    },
                )
                for zone, amounts in zones.items()
            ),
            policy,
            scope,
            fingerprint=pods_fingerprint,
            attributes={FINGERPRINT_METHOD: method},
        ),
        Version.V1ALPHA2,
    )


class Kubelet:
    """The allocations of the kubelet: every container gets its part on the lowest NUMA node with
    room."""

    def __init__(self, name: str, zones: Zones, scope: str = "container") -> None:
        self.name = name
        self.zones = zones
        self.scope = scope
        self.given: dict[str, list[tuple[int, dict[str, int]]]] = {}

    def admits(self, body: Object) -> bool:
        """False: the pod fails with a TopologyAffinityError."""
        name = body["metadata"]["name"]
        self.given[name] = []
        for amounts in self._parts(body):
            used = self.used()
            for zone, total in sorted(self.zones.items()):
                there = used.get(zone, {})
                if all(
                    total.get(each, 0) - there.get(each, 0) >= amount
                    for each, amount in amounts.items()
                ):
                    self.given[name].append((zone, amounts))
                    break
            else:
                del self.given[name]
                return False
        return True

    def ends(self, name: str) -> None:
        self.given.pop(name, None)

    def used(self) -> dict[int, dict[str, int]]:
        used: dict[int, dict[str, int]] = {}
        for parts in self.given.values():
            for zone, amounts in parts:
                there = used.setdefault(zone, {})
                for each, amount in amounts.items():
                    there[each] = there.get(each, 0) + amount
        return used

    def report(self, pods: tuple[str, ...]) -> Object:
        """`pods`: the started pods, as the agent reads them from the API server."""
        return topology(self.name, self.zones, self.used(), pods, scope=self.scope)

    def _parts(self, body: Object) -> list[dict[str, int]]:
        parts = [
            {
                each: int(text) * (1000 if each == "cpu" else 1)
                for each, text in container["resources"]["requests"].items()
            }
            for container in body["spec"]["containers"]
        ]
        if self.scope == "container":
            return parts
        names = {each for part in parts for each in part}
        return [{each: sum(part.get(each, 0) for part in parts) for each in names}]
