"""Kubernetes' own DRA driver for tests (test/e2e/dra/test-driver) on a node.

Its account may not write ResourceSlices, because those of the driver have no attributes: a test
creates its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests import tools
from tests.cluster import controlplane
from tests.cluster.cluster import Cluster

DRIVER = CLASS = "cards.topolet.test"
"""The driver, and the DeviceClass of all its devices."""

_PROCESS = _ACCOUNT = "dra-driver"
_BINDING = ("clusterrolebinding", _ACCOUNT)
_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": _ACCOUNT},
    "rules": [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
    ],
}
_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": CLASS},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
# The driver does not make the folder of its socket. A program on the host's file system is slow, as
# the guest maps it.
_PREPARE = f"""mkdir -p /var/lib/kubelet/plugins/{DRIVER} /run/bin
cp "$1/test-driver" /run/bin/{_PROCESS}
"""


@contextlib.contextmanager
def running(cluster: Cluster, node: str) -> Iterator[None]:
    """Runs the driver on the node during the block, and removes its objects and all claims at its
    end."""
    if isinstance(programs := tools.built("dra-driver"), str):
        pytest.skip(programs)
    machine = cluster.nodes[node].machine
    url = f"https://{controlplane.SERVICE_ADDRESS}"
    kubeconfig = cluster.control.user_config(_ACCOUNT, url)
    cluster.create(_ROLE, _CLASS)
    allow(cluster)
    machine.run("sh", "-ec", _PREPARE, "sh", str(programs))
    machine.start(
        _PROCESS,
        *(f"/run/bin/{_PROCESS}", "kubelet-plugin", f"--node-name={node}"),
        # From 6 on it logs the kubelet's calls.
        *(f"--drivername={DRIVER}", f"--kubeconfig={kubeconfig}", "--v=6"),
    )
    try:
        cluster.eventually(
            "the driver is registered",
            lambda: machine.alive(_PROCESS) and "NotifyRegistrationStatus" in machine.log(_PROCESS),
        )
        yield
    finally:
        machine.end(_PROCESS)
        cluster.kubectl("delete", "resourceclaims", "--all", "--wait=false")
        cluster.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={DRIVER}")
        cluster.kubectl("delete", "deviceclass", CLASS)
        refuse(cluster)
        cluster.kubectl("delete", "clusterrole", _ACCOUNT)


def allow(cluster: Cluster) -> None:
    """The driver can read claims, so it prepares them."""
    cluster.kubectl("create", *_BINDING, f"--clusterrole={_ACCOUNT}", f"--user={_ACCOUNT}")


def refuse(cluster: Cluster) -> None:
    """The driver can't read claims, so it prepares none."""
    cluster.kubectl("delete", *_BINDING, "--ignore-not-found")


def resource_slice(node: str, devices: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`devices`: the attributes of each device of the node, by its name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{DRIVER}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": name, "attributes": attributes} for name, attributes in devices.items()
            ],
        },
    }


def claim(name: str, expression: str) -> dict[str, Any]:
    """A ResourceClaim on one device for which the CEL expression is true."""
    request = {"deviceClassName": CLASS, "selectors": [{"cel": {"expression": expression}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "card", "exactly": request}]}},
    }
