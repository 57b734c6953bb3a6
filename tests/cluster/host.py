"""A cluster of one node in a world of this machine."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import tools
from tests.cluster import controlplane, failures, images, node, world
from tests.cluster.cluster import HOST, Cluster
from tests.cluster.controlplane import ControlPlane
from tests.cluster.node import Node
from tests.cluster.world import World
from tests.fixtures import image

_KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
    "etcd",
)
NodeMaker = Callable[[World, str, str, str, Mapping[str, Any]], Node]

_PODS = "10.244.0.0/22"
_NETWORK = {
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": True,
    "hairpinMode": True,
    "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": _PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/run/cni-addresses",
    },
}


def programs_or_skip() -> str:
    """The folders with all programs, colon-separated. Skips the test where one is not available."""
    if missing := lacking():
        pytest.skip("; ".join(missing))
    folders: dict[str, None] = {}
    for name in _KUBERNETES:
        program = tools.kubernetes(name)
        if isinstance(program, str):
            pytest.skip(program)
        if not program.exists():
            pytest.skip(f"no {program}")
        folders[str(program.parent)] = None
    for name in ("containerd", "cri-tools"):
        folder = tools.built(name)
        if isinstance(folder, str):
            pytest.skip(folder)
        folders[str(folder)] = None
    return ":".join(folders)


def lacking() -> list[str]:
    """The reasons why no cluster can start here."""
    missing = world.lacking()
    if not (node.PLUGINS / "bridge").exists():
        missing.append("containernetworking-plugins")
    if shutil.which("runc") is None:
        missing.append("runc")
    if image.busybox() is None:
        missing.append("busybox-static")
    return [f"not here: {', '.join(missing)} (`make test-cluster` installs it)"] * bool(missing)


@contextlib.contextmanager
def running(made: NodeMaker = Node) -> Iterator[Cluster]:
    """Starts a control plane and one node, on which at most Topolet's proxy runs. Skips the test if
    that is not possible."""
    programs = programs_or_skip()
    prepared = images.prepared(programs)
    with world.created(programs) as place:
        control = ControlPlane(place)
        cluster = Cluster(control, prepared)
        kubeconfig = control.node_config(HOST, f"https://{controlplane.ADDRESS}:6443")
        host = made(place, HOST, world.ADDRESS, kubeconfig, _NETWORK)
        cluster.nodes[HOST] = host
        with failures.written(cluster, "start"):
            images.join(place, prepared)
            _start(cluster, host, place)
        try:
            yield cluster
        finally:
            for each in cluster.nodes.values():
                each.machine.close()


def _start(cluster: Cluster, host: Node, place: World) -> None:
    host.start_containerd()
    cluster.control.start()
    config = cluster.control.config("system:kube-proxy")
    place.start(
        "kube-proxy",
        "kube-proxy",
        f"--kubeconfig={config}",
        f"--hostname-override={HOST}",
        f"--cluster-cidr={_PODS}",
        "--proxy-mode=iptables",
        # Conntrack settings are those of the machine, not of the world.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    )
    config = cluster.control.config("admin")
    program = Path(__file__).with_name("dns.py")
    place.start("dns", sys.executable, program, world.ADDRESS, config)
    if host.has_proxy:
        host.start_proxy("--http=0.0.0.0:9327")
    host.start_kubelet(clusterDNS=[world.ADDRESS], maxPods=160)
    cluster.wait_node_ready(HOST)
