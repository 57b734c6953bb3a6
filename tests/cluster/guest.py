"""A second node in an emulated machine: 16 CPUs on 4 NUMA nodes, cgroup v2 (tests.vm.guest).

The emulator runs in the world of the first node and sees its files. The guest's network leads to
the API server, at the address of the Service `kubernetes`, and nowhere else; the API server reaches
the guest's kubelet.
"""

from __future__ import annotations

import compileall
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import controlplane, failures, images
from tests.cluster.cluster import GUEST, HOST, NAMESPACE, Cluster
from tests.cluster.machine import Machine
from tests.cluster.node import Node
from tests.fixtures import image
from tests.vm import guest
from tests.waiting import eventually

ADDRESS = "10.200.0.2"
CARD = f"0000:{guest.FAR_BUS + 1:02x}:00.0"
"""The PCI address of a card on NUMA node `tests.vm.guest.FAR_NODE`, an RDMA device to the agent."""
TAINT = {"key": "topolet.test/guest", "effect": "NoSchedule"}
"""Keeps other pods off the guest, whose pods no Service reaches."""

_MEMORY_GB = 2
_PORT = "topolet"
_NETWORK = {
    "type": "bridge",
    "bridge": "cni0",
    "ipam": {
        "type": "host-local",
        "ranges": [
            [{"subnet": "10.0.0.0/8", "rangeStart": "10.200.1.1", "rangeEnd": "10.200.1.250"}]
        ],
        "dataDir": "/run/cni-addresses",
    },
}
# The emulator listens there for the guest's kubelet. A client that connects gets the address of the
# emulator, which forwards only callers from 127.0.0.1; from the guest's own address nothing would
# arrive.
_ROUTE = f"""ip addr add {ADDRESS}/32 dev lo
ip route replace local {ADDRESS}/32 dev lo table local proto kernel scope host src 127.0.0.1
"""
_BOOT_SECONDS = 300.0
LONG_PROBES = [
    {
        "op": "add",
        "path": f"/spec/template/spec/containers/0/{probe}/failureThreshold",
        "value": 300,
    }
    for probe in ("startupProbe", "livenessProbe")
]
"""The agent starts and responds more slowly on the guest than its probes allow."""


def join(cluster: Cluster) -> None:
    """Boots the guest and makes it a node on which the agent is Ready. Skips the test if the guest
    cannot run. The guest ends with the world."""
    if reasons := guest.lacking():
        pytest.skip("; ".join(reasons))
    with failures.written(cluster, "guest"):
        words = ("patch", "-n", NAMESPACE, "daemonset", "topolet-agent", "--type=json")
        cluster.kubectl(*words, "--patch", json.dumps(LONG_PROBES))
        _join(cluster, _boot(cluster))
        cluster.wait_agent_ready(HOST)
        cluster.wait_agent_ready(GUEST)


def _join(cluster: Cluster, machine: Machine) -> None:
    url = f"https://{controlplane.SERVICE_ADDRESS}"
    kubeconfig = cluster.control.node_config(GUEST, url)
    # A program on the host's file system is slow, as the guest maps it.
    node = Node(machine, GUEST, ADDRESS, kubeconfig, _NETWORK, program="/run/bin/kubelet")
    cluster.nodes[GUEST] = node
    images.join(machine, cluster.images)
    node.start_containerd()
    # The agent responds slowly on an emulated machine.
    node.start_proxy("--hold-seconds=30")
    machine.run("sh", "-ec", "mkdir /run/bin; cp $(command -v kubelet) /run/bin/kubelet")
    node.start_kubelet(runtimeRequestTimeout="4m", registerWithTaints=[TAINT])
    cluster.wait_node_ready(GUEST)


def _boot(cluster: Cluster) -> Machine:
    """Boots a guest that ends before its first step once more, because qemu itself sometimes
    crashes."""
    # The guest cannot write compiled files.
    for folder in ("agent", "demo"):
        compileall.compile_dir(guest.REPOSITORY / folder, quiet=1)
    world = cluster.control.world
    world.run("sh", "-ec", _ROUTE)
    share = world.folder / "guest"
    (share / "logs").mkdir(parents=True)
    output = share / "output.txt"
    for last in (False, True):
        world.start("guest", *_command(share), env={"HOME": str(share)})
        try:
            eventually("the guest is ready", _ready(cluster, output), _BOOT_SECONDS)
            break
        except AssertionError:
            if last or output.exists() or world.ended("guest") is None:
                raise
    machine = Machine(share / "port.sock", share / "logs", {"PATH": world.path})
    machine.run("true")
    return machine


def _ready(cluster: Cluster, output: Path) -> Callable[[], bool]:
    def ready() -> bool:
        text = output.read_text(errors="replace") if output.exists() else ""
        return cluster.control.world.alive("guest") and "ready" in text

    return ready


def _command(share: Path) -> list[str]:
    forward = share / "forward"
    busybox = image.busybox()
    forward.write_text(f"#!/bin/sh\nexec {busybox} nc {controlplane.ADDRESS} {controlplane.PORT}\n")
    forward.chmod(0o755)
    words = [str(Path(__file__).with_name("guest.sh")), str(share), ADDRESS]
    words += [sys.executable, str(share / "logs"), _PORT, CARD]
    network = (
        "-netdev user,id=net,net=10.0.0.0/8,host=10.0.0.2,restrict=on"
        f",hostfwd=tcp:{ADDRESS}:10250-{ADDRESS}:10250"
        f",guestfwd=tcp:{controlplane.SERVICE_ADDRESS}:443-cmd:{forward}"
    )
    options = [
        network,
        "-device virtio-net-pci,netdev=net",
        f"-chardev socket,id=port,path={share / 'port.sock'},server=on,wait=off",
        "-device virtio-serial-pci",
        f"-device virtserialport,chardev=port,name={_PORT}",
        *(f"-device {each}" for each in (*guest.FAR_PORT, "virtio-rng-pci,bus=entry")),
    ]
    return guest.emulator(share, words, _MEMORY_GB, options)
