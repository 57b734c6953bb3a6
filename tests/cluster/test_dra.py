"""ResourceClaims on CPUs with a real kubelet, scheduler and runtime."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from tests.cluster.cluster import NAMESPACE, Cluster
from tests.cluster.pods import manifest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("no_pods")]

DRIVER = "cpu.topolet.io"
CLASS: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}
ROLE: dict[str, Any] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "trial-dra"},
    "rules": [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceslices"],
            "verbs": ["get", "list", "watch", "create", "patch", "delete"],
        },
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    ],
}
FOLDERS = {
    "plugins": "/var/lib/kubelet/plugins",
    "registry": "/var/lib/kubelet/plugins_registry",
    "cdi": "/var/run/cdi",
}


def patch(name: str) -> str:
    mounts = [{"name": name, "mountPath": path} for name, path in FOLDERS.items()]
    volumes = [
        {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        for name, path in FOLDERS.items()
    ]
    container = {"name": name, "volumeMounts": mounts}
    return json.dumps(
        {"spec": {"template": {"spec": {"containers": [container], "volumes": volumes}}}}
    )


def claim(name: str, cpus: int) -> dict[str, Any]:
    request = {
        "name": "cpus",
        "exactly": {
            "deviceClassName": DRIVER,
            "capacity": {"requests": {f"{DRIVER}/cpu": str(cpus)}},
        },
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}},
    }


@pytest.fixture(scope="module")
def with_dra(installed: Cluster) -> Cluster:
    cluster = installed
    daemonset = cluster.objects("daemonsets", namespace=NAMESPACE)[0]
    container = daemonset["spec"]["template"]["spec"]["containers"][0]
    name = container["name"]
    words = ("-n", NAMESPACE, "daemonset", daemonset["metadata"]["name"])
    cluster.create(CLASS, ROLE)
    cluster.kubectl(
        "create",
        "clusterrolebinding",
        "trial-dra",
        "--clusterrole=trial-dra",
        f"--serviceaccount={NAMESPACE}:topolet-agent",
    )
    cluster.kubectl("patch", *words, "--type=strategic", "-p", patch(name))
    added = [{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--dra"}]
    cluster.kubectl("patch", *words, "--type=json", "-p", json.dumps(added))
    cluster.eventually(
        "the slice is published",
        lambda: cluster.objects("resourceslices"),
    )
    return cluster


def test_a_pod_has_the_cpus_of_its_claim(with_dra: Cluster) -> None:
    cluster = with_dra
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.create(
        claim("one", 1),
        manifest(
            "claimed",
            container={"resources": {"requests": {"cpu": "100m"}, "claims": [{"name": "cpus"}]}},
            resourceClaims=[{"name": "cpus", "resourceClaimName": "one"}],
        ),
    )
    cluster.wait_running("claimed")
    own = cluster.cpus_of("claimed")
    assert len(own) == 1
    assert cluster.cpus_of("ls") == CpuSet((0, 1)) - own
