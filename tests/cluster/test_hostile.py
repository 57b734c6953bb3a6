"""Pods that try to mislead or overload the agent, next to an owner on two CPUs."""

from __future__ import annotations

import itertools
import json
import string
from typing import Any

import pytest

from agent.model.pod.annotations import EXTENDED_RESOURCE_SPEC
from agent.node.change_log import INVALID_ANNOTATION
from tests.cluster import images
from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.cluster.pods import manifest
from tests.fixtures import image

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_pods")]

FLAGS = "--cpu-manager-policy=static --reserved-cpus=0-1"
IMPOSTOR = f"""ln -s /bin/sh /tmp/kubelet
PATH=/tmp:$PATH
exec kubelet -c 'while :; do sleep 1000 & wait $!; done' sh {FLAGS}"""
BOTH = "0-1"
NO_BATCH = {"resources": {"requests": {"kubernetes.io/batch-cpu": "0"}}}
"""The policy for the annotation admits it, and every node has room for it."""


def test_pod_that_calls_itself_kubelet_changes_nothing(installed: Cluster) -> None:
    cluster = installed
    cluster.pod("ls", qos="LS", cpu="100m")
    cluster.pod("lse", qos="LSE", cpu=1)
    before = cluster.cpus("ls", "lse")
    cluster.pod(
        "impostor",
        hostPID=True,
        container={"image": images.image_name(), "command": ["sh", "-c", IMPOSTOR]},
    )
    machine = cluster.nodes[HOST].machine
    name = "\0".join(["kubelet", "-c"])
    cluster.eventually(
        "it has the name",
        lambda: any(each.startswith(name) for each in machine.read("/proc/*/cmdline").values()),
    )
    with cluster.following("ls", "lse") as seen:
        # The one that started first has the lower pid.
        cluster.nodes[HOST].restart_kubelet()
        cluster.delete_pod(cluster.agent_pod(HOST), namespace=NAMESPACE)
        cluster.wait_node_ready(HOST)
        cluster.wait_agent_ready(HOST)
    assert seen == {name: [cpus] for name, cpus in before.items()}
    assert cluster.agent_metric(HOST, 'topolet_source_problems{source="kubelet-process"}') == 0
    assert cluster.cpu_manager_policy(HOST) == "none"
    cluster.delete_pod("lse")
    cluster.eventually("the CPU is in the pool again", lambda: cluster.cpus("ls") == {"ls": BOTH})


def test_pod_with_a_large_environment_starts_on_the_cpus_of_its_pool(installed: Cluster) -> None:
    """The kernel allows 128 KiB for one variable, and 2 MiB for all."""
    cluster = installed
    cluster.pod("lse", qos="LSE", cpu=1)
    (rest,) = {0, 1} - set(cluster.cpus_of("lse"))
    maps: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"large-{number}"},
            "data": {f"LARGE_{number}_{part}": "x" * 75_000 for part in range(10)},
        }
        for number in range(2)
    ]
    names = [each["metadata"]["name"] for each in maps]
    script = (
        f"{image.BUSYBOX} grep Cpus_allowed_list /proc/self/status; exec {image.BUSYBOX} sleep 1000"
    )
    cluster.create(*maps)
    try:
        cluster.pod(
            "large",
            qos="LS",
            cpu="100m",
            container={
                "command": [image.BUSYBOX, "sh", "-c", script],
                "envFrom": [{"configMapRef": {"name": name}} for name in names],
            },
        )
    finally:
        cluster.kubectl("delete", "configmap", *names)
    cluster.eventually("it has logged its first CPUs", lambda: cluster.logs("large"))
    assert cluster.logs("large").split() == ["Cpus_allowed_list:", str(rest)]
    assert cluster.cpus("large") == {"large": str(rest)}
    assert cluster.agent_metric(HOST, "topolet_cpu_overlaps_total") == 0


def test_annotations_that_name_thousands_of_containers_do_not_end_the_agent(
    installed: Cluster,
) -> None:
    cluster = installed
    names = map("".join, itertools.product(string.ascii_lowercase, repeat=4))
    containers: dict[str, Any] = {name: {} for name in itertools.islice(names, 25_936)}
    text = json.dumps({"containers": containers}, separators=(",", ":"))
    assert len(text) > 250_000
    pods = [f"be-{number}" for number in range(6)]
    agent, restarts = cluster.agent_pod(HOST), cluster.agent_restarts(HOST)
    for each in pods:
        cluster.create(
            manifest(each, qos="BE", annotations={EXTENDED_RESOURCE_SPEC: text}, container=NO_BATCH)
        )
    cluster.wait_running(*pods)
    cluster.pod("lse", qos="LSE", cpu=1)
    own = cluster.cpus_of("lse")
    assert own == cluster.allocated("lse")
    (rest,) = {0, 1} - set(own)
    assert cluster.cpus(*pods) == dict.fromkeys(pods, str(rest))
    for each in pods:
        cluster.eventually(
            f"an Event reports the error of {each}",
            lambda each=each: (
                EXTENDED_RESOURCE_SPEC in str(cluster.events(each, INVALID_ANNOTATION))
            ),
        )
    assert cluster.agent_pod(HOST) == agent
    assert cluster.agent_restarts(HOST) == restarts

    # A starting agent has to read them all at once.
    cluster.delete_pod(agent, namespace=NAMESPACE)
    cluster.wait_agent_ready(HOST)
    assert cluster.agent_restarts(HOST) == 0
    assert cluster.cpus("lse", *pods) == {"lse": str(own)} | dict.fromkeys(pods, str(rest))
