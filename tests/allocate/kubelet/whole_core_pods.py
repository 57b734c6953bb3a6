"""Pods on an empty machine of 16 CPUs with two threads a core, whose kubelet has full-pcpus-only
and reserves CPU 0. `tests/integration/test_full_pcpus_only.py` shows that a kubelet answers so."""

from __future__ import annotations

from typing import Any, Final

import msgspec

FULL_PCPUS_ONLY: Final = "full-pcpus-only"
MEMORY: Final = "32Mi"


class Container(msgspec.Struct, frozen=True):
    """`cpu_limit` "": that of the request, which makes a pod Guaranteed."""

    cpu: str
    cpu_limit: str = ""
    sidecar: bool = False

    def fields(self, name: str) -> dict[str, Any]:
        """Those of a pod's container."""
        requests = {"cpu": self.cpu, "memory": MEMORY} if self.cpu else {}
        limits = {**requests, "cpu": self.cpu_limit} if self.cpu_limit else requests
        restart = {"restartPolicy": "Always"} if self.sidecar else {}
        return {"name": name, "resources": {"requests": requests, "limits": limits}, **restart}


class Pod(msgspec.Struct, frozen=True):
    """`refused`: the first container that the kubelet refuses, as in the reason; "" if it admits
    the pod. `pod_cpu`: of the pod as a whole (`spec.resources`)."""

    name: str
    containers: tuple[Container, ...]
    refused: str = ""
    qos: str = ""
    init: tuple[Container, ...] = ()
    pod_cpu: str = ""

    @property
    def labels(self) -> dict[str, str]:
        return {"koordinator.sh/qosClass": self.qos} if self.qos else {}

    def spec(self) -> dict[str, Any]:
        whole = {"cpu": self.pod_cpu, "memory": "64Mi"}
        return {
            "containers": [each.fields(f"c{at}") for at, each in enumerate(self.containers)],
            "initContainers": [each.fields(f"i{at}") for at, each in enumerate(self.init)],
            **({"resources": {"requests": whole, "limits": whole}} if self.pod_cpu else {}),
        }


def _containers(*cpus: str) -> tuple[Container, ...]:
    return tuple(map(Container, cpus))


PODS: Final = (
    Pod("one-core", _containers("2")),
    Pod("three-cpus", _containers("3"), "container c0"),
    Pod("two-half-cores", _containers("1", "1"), "container c0"),
    Pod("two-cores", _containers("2", "2")),
    Pod("three-and-one", _containers("3", "1"), "container c0"),
    Pod("two-and-one", _containers("2", "1"), "container c1"),
    Pod("fractions", _containers("1500m", "1500m")),
    Pod("core-beside-fraction", _containers("2", "500m")),
    Pod("half-core-beside-fraction", _containers("500m", "1"), "container c1"),
    Pod("burstable", (Container("3", "4"),)),
    Pod("whole-pod", _containers("1", "1"), pod_cpu="3"),
    Pod("lsr-half-cores", _containers("1", "1"), "container c0", qos="LSR"),
    Pod("lsr-three-and-one", _containers("3", "1"), "container c0", qos="LSR"),
    Pod("lsr-two-cores", _containers("2", "2"), qos="LSR"),
    Pod("lse-three-cpus", _containers("3"), "container c0", qos="LSE"),
    Pod("lse-two-cores", _containers("4"), qos="LSE"),
    Pod("ls-three-cpus", _containers("3"), "container c0", qos="LS"),
    Pod("be-three-cpus", _containers("3"), "container c0", qos="BE"),
    Pod("init-three-cpus", _containers("2"), "init container i0", init=_containers("3")),
    Pod("init-one-core", _containers("4"), init=_containers("2")),
    Pod(
        "half-core-sidecar",
        _containers("2"),
        "sidecar container i0",
        init=(Container("1", sidecar=True),),
    ),
    Pod("core-sidecar", _containers("2"), init=(Container("2", sidecar=True),)),
    Pod("all-cores", _containers("14")),
    Pod("init-leaves-enough", _containers("6"), init=_containers("8")),
    Pod("init-leaves-too-little", _containers("8"), "container c0", init=_containers("8")),
)
"""The last one fits after its init container, but the kubelet does not count what that had."""
