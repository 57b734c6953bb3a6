"""A node whose containerd and kubelet are services of a real systemd, as kubeadm starts them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.cluster import host
from tests.cluster.cluster import HOST, Cluster
from tests.cluster.node import NETWORK_PLUGINS, Node
from tests.cluster.world import World
from tests.integration import systemdhost
from tests.integration.systemdhost import SystemdHost

ENDPOINT = "unix:///var/run/containerd/containerd.sock"
"""As kubeadm names it: /var/run is a link."""


class UnitNode(Node):
    """Its kubelet uses the runtime itself; the endpoint is a flag in kubeadm's file."""

    has_proxy = False

    def __init__(
        self, place: World, name: str, address: str, kubeconfig: str, network: Mapping[str, Any]
    ) -> None:
        super().__init__(place, name, address, kubeconfig, network)
        self.host = SystemdHost(place, 2)
        self._flags = (
            f"--container-runtime-endpoint={ENDPOINT}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={name}",
            f"--node-ip={address}",
        )

    def start_containerd(self) -> None:
        """With the images of the world; boots systemd first."""
        self._write_network()
        self.host.boot()
        self.host.start_containerd(NETWORK_PLUGINS)

    def start_kubelet(self, **configuration: Any) -> None:
        """Adds these fields to its configuration."""
        fields = self._kubelet_configuration() | configuration
        del fields["containerRuntimeEndpoint"]
        self.host.start_kubelet(" ".join(self._flags), **fields)

    def kubelet_runs(self) -> bool:
        assert self.host.unit_property("kubelet.service", "ActiveState") == "active", (
            self.host.logs()
        )
        return True


@contextlib.contextmanager
def running() -> Iterator[tuple[Cluster, SystemdHost]]:
    """A control plane and one such node, on which nothing of Topolet runs. Skips the test if that
    is not possible."""
    if missing := systemdhost.lacking():
        pytest.skip(f"not here: {', '.join(missing)}")
    with host.running(UnitNode) as cluster:
        node = cluster.nodes[HOST]
        assert isinstance(node, UnitNode)
        yield cluster, node.host
