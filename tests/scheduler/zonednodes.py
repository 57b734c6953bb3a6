"""Nodes whose kubelets place pods without claims on single NUMA nodes, and the reports of their
agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.model.nrt import resource_topology
from agent.model.nrt import resource_topology as fingerprint
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
    """A pod with one container for each of `containers`, their requests. It is Guaranteed if it is
    `limited` and requests CPU and memory."""
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
    """`used`: the used amounts of each zone. `pods`: the names in the pod fingerprint; None: the
    report has no fingerprint."""
    pods_fingerprint = (
        None if pods is None else fingerprint.fingerprint_of(("default", each) for each in pods)
    )
    return resource_topology.encode(
        NodeTopology(
            name,
            tuple(
                Zone(
                    zone,
                    {
                        each: Amounts(total, total, total - (used or {}).get(zone, {}).get(each, 0))
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
    """The kubelet's allocations: each container, or in pod scope the pod, gets its resources on the
    NUMA node with the lowest id that has room."""

    def __init__(self, name: str, zones: Zones, scope: str = "container") -> None:
        self.name = name
        self.zones = zones
        self.scope = scope
        self.allocations: dict[str, list[tuple[int, dict[str, int]]]] = {}

    def admit(self, body: Object) -> bool:
        """Returns False if the pod fails with a TopologyAffinityError."""
        name = body["metadata"]["name"]
        self.allocations[name] = []
        for amounts in self._requests(body):
            used = self.used()
            for zone, total in sorted(self.zones.items()):
                in_zone = used.get(zone, {})
                if all(
                    total.get(each, 0) - in_zone.get(each, 0) >= amount
                    for each, amount in amounts.items()
                ):
                    self.allocations[name].append((zone, amounts))
                    break
            else:
                del self.allocations[name]
                return False
        return True

    def terminate(self, name: str) -> None:
        self.allocations.pop(name, None)

    def used(self) -> dict[int, dict[str, int]]:
        used: dict[int, dict[str, int]] = {}
        for allocated in self.allocations.values():
            for zone, amounts in allocated:
                in_zone = used.setdefault(zone, {})
                for each, amount in amounts.items():
                    in_zone[each] = in_zone.get(each, 0) + amount
        return used

    def report(self, pods: tuple[str, ...]) -> Object:
        """The agent's report. `pods`: the started pods that the API server returns to the agent."""
        return topology(self.name, self.zones, self.used(), pods, scope=self.scope)

    def _requests(self, body: Object) -> list[dict[str, int]]:
        requests = [
            {
                each: int(text) * (1000 if each == "cpu" else 1)
                for each, text in container["resources"]["requests"].items()
            }
            for container in body["spec"]["containers"]
        ]
        if self.scope == "container":
            return requests
        names = {each for request in requests for each in request}
        return [{each: sum(request.get(each, 0) for request in requests) for each in names}]
