"""What a pod asks of a node beside resources."""

from __future__ import annotations

from typing import Final

import msgspec


class Constraints(msgspec.Struct, frozen=True):
    """Of a pod as it stands in JSON."""

    spec: _Spec | None = None

    def any(self) -> bool:
        """Ports of the host, volumes that not every node has, other pods, claims."""
        spec = self.spec or _Spec()
        containers = (*(spec.containers or ()), *(spec.init_containers or ()))
        affinity = spec.affinity or _Affinity()
        return bool(
            affinity.pod_affinity
            or affinity.pod_anti_affinity
            or spec.topology_spread_constraints
            or spec.resource_claims
            or any(port.host_port for each in containers for port in each.ports or ())
            or any(not _LOCAL & each.keys() for each in spec.volumes or ())
        )


class _Port(msgspec.Struct, frozen=True, rename="camel"):
    host_port: int = 0


class _Ports(msgspec.Struct, frozen=True):
    ports: tuple[_Port, ...] | None = None


class _Affinity(msgspec.Struct, frozen=True, rename="camel"):
    pod_affinity: object = None
    pod_anti_affinity: object = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    affinity: _Affinity | None = None
    containers: tuple[_Ports, ...] | None = None
    init_containers: tuple[_Ports, ...] | None = None
    topology_spread_constraints: tuple[object, ...] | None = None
    resource_claims: tuple[object, ...] | None = None
    volumes: tuple[dict[str, object], ...] | None = None


# Volumes of which a node has as many as are asked for.
_LOCAL: Final = frozenset(
    ("configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret")
)
