"""ResourceClaims as an API server has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agent.kube.errors import NotFoundError
from agent.model.dra.names import DRIVER


class ClaimsOfServer:
    """The ResourceClaims of an API server, and the passes that were asked for."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.passes = 0
        self.reads = 0
        self.read_claim: Callable[[], object] = lambda: None
        """Runs while a claim is read."""

    def add(self, name: str, cpus: int, device: str = "numa-node-0", **metadata: str) -> None:
        entry = {"request": "cpus", "driver": DRIVER, "pool": "n1", "device": device}
        entry["consumedCapacity"] = {f"{DRIVER}/cpu": str(cpus)}  # type: ignore[assignment]
        self.claims["ns", name] = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}", **metadata},
            "status": {
                "allocation": {"devices": {"results": [entry]}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u-p"}],
            },
        }

    def read(self, namespace: str, name: str) -> bytes:
        self.reads += 1
        self.read_claim()
        if (namespace, name) not in self.claims:
            raise NotFoundError(f"resourceclaims {name!r} not found")
        return json.dumps(self.claims[namespace, name]).encode()

    def wake(self) -> None:
        self.passes += 1
