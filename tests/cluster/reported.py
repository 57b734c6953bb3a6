"""A third node, `r1`: the objects that its kubelet and its agent would write, and no machine behind
them. It has eight GPUs behind two PCIe switches, each with an RDMA device.

The DaemonSet and the schedulers treat it as a node; pods on it never start.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from tests.cluster.cluster import NAMESPACE, Cluster
from tests.fixtures import fleet

NAME = "r1"
KINDS = ("node", "noderesourcetopologies.topology.node.k8s.io", "devices.scheduling.koordinator.sh")

_HEARTBEAT = f"{NAME}-heartbeat"
# The controller manager sets a node whose Lease is not renewed for 50 s to NotReady.
_RENEW = f"""while :; do
    kubectl --kubeconfig "$1" patch lease {NAME} -n kube-node-lease --type=merge \
        -p '{{"spec": {{"renewTime": "'$(date -u +%FT%T.000000Z)'"}}}}'
    sleep 10
done"""
_READY = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is ready"}]
_FORCED = ("--force", "--grace-period=0", "--wait=false")


@contextlib.contextmanager
def joined(cluster: Cluster) -> Iterator[fleet.Machine]:
    """Adds the node to the cluster during the block; waits until its agent's pod is Ready."""
    machine = fleet.Machine(fleet.CARDS)
    node = machine.node(NAME)
    del node["metadata"]["uid"]
    node["metadata"]["labels"]["kubernetes.io/os"] = "linux"
    node["status"]["conditions"] = _READY
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NAME, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": NAME, "leaseDurationSeconds": 40},
    }
    world = cluster.control.world
    try:
        cluster.create(lease)
        world.start(_HEARTBEAT, "sh", "-c", _RENEW, "sh", cluster.control.config("admin"))
        cluster.create(node, machine.topology(NAME), machine.devices(NAME))
        cluster.eventually("the DaemonSet has a pod there", lambda: _agents(cluster))
        ready = {"status": {"phase": "Running", "conditions": _READY}}
        words = ("patch", "pod", _agents(cluster)[0], "-n", NAMESPACE, "--subresource=status")
        cluster.kubectl(*words, "-p", json.dumps(ready))
        yield machine
    finally:
        with contextlib.suppress(Exception):
            world.end(_HEARTBEAT)
        cluster.kubectl("delete", "lease", NAME, "-n", "kube-node-lease", "--ignore-not-found")
        for kind in KINDS:
            cluster.kubectl("delete", kind, NAME, "--ignore-not-found")
        remove_pods(cluster, NAMESPACE)
        remove_pods(cluster)


def remove_pods(cluster: Cluster, namespace: str = "default") -> None:
    """Removes the pods of the node, whose end no kubelet confirms, and before them those without a
    node: the scheduler could still place them here."""
    for node in ("", NAME):
        chosen = f"--field-selector=spec.nodeName={node}"
        cluster.kubectl("delete", "pods", "-n", namespace, chosen, *_FORCED)


def _agents(cluster: Cluster) -> list[str]:
    on_node = f"--field-selector=spec.nodeName={NAME}"
    labels = ("-l", "app.kubernetes.io/component=agent")
    found = cluster.objects("pods", *labels, on_node, namespace=NAMESPACE)
    return [each["metadata"]["name"] for each in found]
