"""A node whose kubelet is a systemd service, by the commands of docs/install.md alone: the chart is
installed, its pool is switched to the proxy while an LSE pod runs, upgraded while pods start and
end, and removed. Then nothing is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.model.pod.annotations import RESOURCE_STATUS, status_text
from tests.cluster import failures, images, release, units
from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.cluster.plugin import run as plugin
from tests.cluster.pods import manifest
from tests.cluster.release import documented, helm
from tests.deploy import chart
from tests.fixtures import image
from tests.integration.systemdhost import CONFIG, ENV, ROOT, SystemdHost

FOLDERS = (
    *("/etc/systemd", "/etc/crictl.yaml", "/etc/kubernetes", "/opt", "/run/topolet"),
    *("/var/lib/topolet", CONFIG, ENV),
)
VALUES: dict[str, Any] = {
    "scheduler": {"enabled": True, "kubeScheduler": {"image": {"tag": "v1.36.3"}}},
}
"""This API server does not know its version."""
ALL = "0-1"
DEFINITIONS = ("get", "customresourcedefinitions", "-o", "name")
CURRENT = "/opt/topolet/current"
INSTALLED = f"{CURRENT}/bin/topolet"

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def units_node() -> Iterator[tuple[Cluster, SystemdHost]]:
    """A separate cluster without Topolet."""
    chart.helm()
    with units.running() as (cluster, host):
        cluster.eventually(
            "the default account exists",
            lambda: cluster.get("serviceaccount", "default", "default"),
        )
        yield cluster, host


def services(host: SystemdHost) -> list[str]:
    """The units of systemd, with their states."""
    words = ("--all", "--plain", "--no-legend", "--type=service,socket,target")
    lines = host.systemctl("list-units", *words).splitlines()
    return sorted(" ".join(line.split()[:4]) for line in lines)


def container(host: SystemdHost, name: str) -> str:
    """The id of the container `main` of a pod."""
    words = (
        "crictl",
        "--timeout=60s",
        f"--runtime-endpoint={units.ENDPOINT}",
        "ps",
        "--output=json",
    )
    found = json.loads(host.run(*words))["containers"]
    (only,) = (each["id"] for each in found if each["labels"]["io.kubernetes.pod.name"] == name)
    return str(only)


def admitted(cluster: Cluster) -> set[str]:
    """The pods whose containers the proxy has admitted, by its audit trail."""
    texts = cluster.nodes[HOST].machine.read("/run/topolet/audit/proxy.*.jsonl").values()
    records = [json.loads(line) for text in texts for line in text.splitlines()]
    return {each["pod"] for each in records if each["event"] == "ContainerAdmitted"}


LOAD = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "load"},
    "spec": {
        "completions": 12,
        "parallelism": 2,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": image.NAME,
                        "imagePullPolicy": "Never",
                        "command": [image.BUSYBOX, "sh", "-c", "true"],
                    }
                ],
            }
        },
    },
}
"""Pods that start and end one after the other."""


def documented_pools() -> dict[str, Any]:
    """The values below "A pool behind the proxy"."""
    found: dict[str, Any] = yaml.safe_load(release.block("A pool behind the proxy", "yaml"))
    return found


class InitialState:
    """The state of a cluster before Topolet is installed."""

    def __init__(self, cluster: Cluster, host: SystemdHost) -> None:
        self._cluster = cluster
        self._host = host
        self._node = release.node(cluster)
        self._objects = release.names(cluster)
        self._definitions = cluster.kubectl(*DEFINITIONS)
        self._files = host.files(*FOLDERS)
        self._services = services(host)

    def check(self, *pods: str) -> None:
        """The state is the initial one, and the pods have all CPUs again."""
        cluster, host = self._cluster, self._host
        cluster.eventually("objects are as before", lambda: release.names(cluster) == self._objects)
        cluster.eventually(
            "and the definitions", lambda: cluster.kubectl(*DEFINITIONS) == self._definitions
        )
        cluster.wait_node_ready(HOST)
        assert release.node(cluster) == self._node
        assert host.connections() == 0
        assert host.files(*FOLDERS) == self._files
        assert services(host) == self._services
        assert cluster.cpus(*pods) == dict.fromkeys(pods, ALL)


class DocumentedCommands:
    """The commands of docs/install.md, with a chart that any API server accepts."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._chart = chart.for_any_version(folder)

    def kubectl(self, heading: str, *words: str, more: str = "") -> None:
        command = documented(heading, "kubectl", *words)[1:]
        paths = [str(ROOT / each) if each.startswith("deploy/") else each for each in command]
        self._cluster.kubectl(*paths, *more.split())

    def helm(self, heading: str, *words: str, values: Any = None) -> str:
        command = documented(heading, "helm", *words)[1:]
        options = ["--timeout=280s"]
        file = self._folder / "pools.yaml"
        if values is not None:
            file.write_text(yaml.safe_dump(values))
            # The image is on the nodes already.
            options.append("--set=image.registry=")
            if file.name not in command:
                options.append(f"--values={file}")
        paths = {"deploy/chart": self._chart, file.name: str(file)}
        return helm(
            self._cluster, self._folder, *(paths.get(each, each) for each in command), *options
        )


def test_a_pool_is_switched_to_the_proxy_upgraded_and_removed(
    units_node: tuple[Cluster, SystemdHost], tmp_path: Path
) -> None:
    cluster, host = units_node
    steps = DocumentedCommands(cluster, tmp_path)
    before = InitialState(cluster, host)

    steps.kubectl("With Helm", "create", "namespace")
    steps.kubectl("With Helm", "label", "namespace")
    with failures.written(cluster, "install"):
        steps.helm("With Helm", "install", values=VALUES)
        cluster.wait_agent_ready(HOST)
        cluster.wait_ready("scheduler")
        cluster.wait_ready("kube-scheduler")
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.pod("lse", qos="LSE", cpu=1)
    own, ids = cluster.cpus_of("lse"), {each: container(host, each) for each in ("lse", "ls")}
    assert own == cluster.allocated("lse")
    rest = cluster.cpus_of("ls")
    assert not rest & own

    with failures.written(cluster, "switch"), cluster.following("lse", "ls") as seen:
        steps.helm("A pool behind the proxy", "upgrade", values=documented_pools())
        steps.kubectl("A pool behind the proxy", "rollout", "status")
        cluster.wait_node_ready(HOST)
        cluster.pod("later", qos="LS", cpu="100m")
    assert seen == {"lse": [str(own)], "ls": [str(rest)]}
    assert {each: container(host, each) for each in ("lse", "ls")} == ids
    assert host.connections() > 0
    assert "later" in admitted(cluster)
    assert not {"lse", "ls"} & admitted(cluster)
    assert cluster.cpus_of("later") == rest
    code, output, error = plugin(cluster, "doctor", HOST)
    assert code == 0, output + error

    agent, version = cluster.agent_pod(HOST), host.files(CURRENT)
    with failures.written(cluster, "upgrade"), cluster.following("lse", "ls") as seen:
        (pool,) = documented_pools()["pools"]
        pool |= {"updateStrategy": "OnDelete", "image": {"tag": images.SUCCESSOR}}
        steps.helm("Upgrade", "upgrade", "topolet", values={"pools": [pool]})
        cluster.create(LOAD)
        command = documented(
            "Upgrade pool by pool", "kubectl", "topolet", "rollout", "topolet-agent"
        )
        code, output, error = plugin(cluster, *command[2:])
        assert code == 0, output + error
        cluster.kubectl("wait", "--for=condition=complete", "job/load", "--timeout=200s")
    assert f"node {HOST}: the new agent is Ready, topolet doctor finds nothing new" in output
    assert cluster.agent_pod(HOST) != agent
    assert host.files(CURRENT) != version
    assert seen == {"lse": [str(own)], "ls": [str(rest)]}
    cluster.kubectl("delete", "job", "load")

    account = f"--as=system:serviceaccount:{NAMESPACE}:topolet-scheduler"
    text = f"{RESOURCE_STATUS}={status_text(rest, {})}"
    cluster.kubectl("annotate", "pod", "lse", "--overwrite", account, text)
    cluster.eventually("it has moved", lambda: cluster.cpus_of("lse") == rest)
    cluster.eventually("the pool has moved", lambda: cluster.cpus("ls") == {"ls": str(own)})
    assert container(host, "lse") == ids["lse"]

    with failures.written(cluster, "removal"):
        output = steps.helm("Remove", "uninstall")
    assert f"node {HOST}: nothing of Topolet is left" in output
    assert "stays" not in output
    assert release.reports(cluster) == []
    for each in ("namespace", "crd"):
        steps.kubectl("Remove", "delete", each, more="--wait=false")
    before.check("lse", "ls", "later")
    assert {each: container(host, each) for each in ("lse", "ls")} == ids
    cluster.pod("afterwards", cpu="10m")
    cluster.delete_pod("lse", "ls", "later", "afterwards")


def test_without_helm_the_proxy_is_installed_and_everything_removed_by_hand(
    units_node: tuple[Cluster, SystemdHost], tmp_path: Path
) -> None:
    cluster, host = units_node
    steps = DocumentedCommands(cluster, tmp_path)
    before = InitialState(cluster, host)
    with failures.written(cluster, "overlay"):
        steps.kubectl("With kustomize", "apply", "--server-side")
        cluster.wait_agent_ready(HOST)
    cluster.create(manifest("lse", qos="LSE", cpu=1))
    # This overlay has no role for that account, which alone may set CPUs.
    cluster.bind_as_scheduler("lse", HOST, "0", "--as-group=system:masters")
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.wait_running("lse")
    ids = {each: container(host, each) for each in ("lse", "ls")}

    with failures.written(cluster, "proxy"), cluster.following("lse", "ls") as seen:
        assert host.topolet("install-proxy").endswith("\ninstalled\n")
        cluster.wait_node_ready(HOST)
        cluster.pod("later", qos="LS", cpu="100m")
    assert seen == {"lse": ["0"], "ls": ["1"]}
    assert admitted(cluster) == {"later"}

    steps.kubectl("Remove", "delete", "-k")
    cluster.wait_deleted("agent")
    output = host.run(*documented("Remove", INSTALLED, "uninstall-node"))
    assert "the proxy is removed" in output
    values = {"NODE": HOST, "admin.kubeconfig": cluster.control.config("admin")}
    command = " ".join(documented("Remove", "topolet", "uninstall-node"))
    for name, each in values.items():
        command = command.replace(f"={name}", f"={each}")
    assert "nothing of Topolet is left" in host.topolet(*command.split()[1:])
    assert release.reports(cluster) == []
    steps.kubectl("Remove", "delete", "crd", more="--wait=false")
    before.check("lse", "ls", "later")
    assert {each: container(host, each) for each in ("lse", "ls")} == ids
