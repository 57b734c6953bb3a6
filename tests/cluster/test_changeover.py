"""The steps of docs/migration.md from a device plugin to Topolet's scheduler, by their commands, on
a whole cluster. The node with GPUs is that of `reported`: a pod that a device plugin gave a card to
runs there by the API server's objects alone."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from agent.model.devices.holding import DEVICES_CHECKPOINTS
from tests.cluster import failures, reported
from tests.cluster.cluster import Cluster
from tests.cluster.plugin import ROOT, run
from tests.cluster.pods import SCHEDULER, manifest
from tests.fixtures.fleet import Machine

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.usefixtures("no_pods")]

NODE = reported.NAME
NAMESPACE = "cards"
RESOURCE = "nvidia.com/gpu"
HELD = f"{NODE}-GPU-3"
_PAGE = ROOT / "docs" / "migration.md"
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The blocks of the section."""
    (section,) = re.findall(
        r"^## From a device plugin for GPUs$(.*?)^## ", _PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return [text for kind, text in _BLOCK.findall(section) if kind == language]


def commands() -> Iterator[list[str]]:
    """The commands of kubectl, in the order of the steps."""
    for text in blocks("sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("NAMESPACE ", f"{NAMESPACE} ") + " ")
            if words[0] == "kubectl":
                yield [NAMESPACE if each == "NAMESPACE" else each for each in words[1:]]


@pytest.fixture
def with_plugin(installed: Cluster) -> Iterator[tuple[Cluster, Machine]]:
    """A node whose kubelet has eight cards of a device plugin, and the namespace of their pods."""
    with failures.written(installed, "reported"), reported.joined(installed) as machine:
        counted = {"status": {each: {RESOURCE: "8"} for each in ("capacity", "allocatable")}}
        words = ("patch", "node", NODE, "--subresource=status", "--type=merge")
        installed.kubectl(*words, "-p", json.dumps(counted))
        installed.kubectl("create", "namespace", NAMESPACE)
        installed.eventually(
            "the default account exists",
            lambda: installed.get("serviceaccount", "default", NAMESPACE),
        )
        try:
            yield installed, machine
        finally:
            forced = ("--force", "--grace-period=0", "--wait=false")
            installed.kubectl("delete", "pods", "--all", "-n", NAMESPACE, *forced)
            installed.kubectl("delete", "namespace", NAMESPACE)


def with_cards(name: str, scheduler: str = "", **words: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {RESOURCE: "1"}}}
    body = manifest(name, scheduler=scheduler, container=limits, **words)
    body["metadata"]["namespace"] = NAMESPACE
    return body


def test_gpu_pods_change_over_from_a_device_plugin(with_plugin: tuple[Cluster, Machine]) -> None:
    cluster, machine = with_plugin
    steps = commands()

    def step(*beginning: str) -> list[str]:
        words = next(each for each in steps if tuple(each[: len(beginning)]) == beginning)
        return [f"{ROOT}/{each}" if each.startswith("deploy/") else each for each in words]

    # Step 1: a pod that the plugin gave a card to, as the agent then reports.
    cluster.create(with_cards("plugged", nodeName=NODE))
    assert run(cluster, *step("topolet", "doctor")[1:])[0] in (0, 1)
    plugged = cluster.get("pod", "plugged", NAMESPACE)
    assert plugged is not None
    held = {
        "podUID": plugged["metadata"]["uid"],
        "containerName": "main",
        "resourceName": RESOURCE,
        "deviceIDs": [HELD],
    }
    body = machine.devices(NODE)
    body["metadata"].setdefault("annotations", {})[DEVICES_CHECKPOINTS] = json.dumps([held])
    cluster.kubectl("replace", "-f", "-", stdin=json.dumps(body))

    listed = cluster.kubectl(*step("get", "pods"))
    assert re.search(rf"^{NAMESPACE} +plugged +\S+Z +1$", listed, re.MULTILINE), listed

    cluster.create(with_cards("waits", scheduler="nobody"))
    waiting = step("get", "pods", "--all-namespaces", "--field-selector=spec.nodeName=")
    assert re.search(rf"^{NAMESPACE} +waits +1$", cluster.kubectl(*waiting), re.MULTILINE)
    cluster.kubectl("delete", "pod", "waits", "-n", NAMESPACE)
    assert NAMESPACE not in cluster.kubectl(*waiting)

    devices = cluster.kubectl(*step("get", "devices.scheduling.koordinator.sh"))
    assert re.search(rf"^{NODE} +{NODE}-GPU-0,.*{HELD}.*\"deviceIDs\":", devices, re.MULTILINE)

    (example,) = (text for text in blocks("yaml") if "gpu-check" in text)
    check = yaml.safe_load(example)
    file = cluster.control.world.folder / "gpu-check.yaml"
    file.write_text(example)
    cluster.kubectl(*step("label", "namespace"))
    created = [str(file) if each == file.name else each for each in step("create")]
    assert "--dry-run=server" in created
    cluster.eventually("new pods get the scheduler", lambda: cluster.kubectl(*created) == SCHEDULER)

    created = [str(file) if each == file.name else each for each in step("create")]
    assert "--dry-run=server" not in created
    cluster.kubectl(*created)
    name = check["metadata"]["name"]
    explained = step("topolet", "explain")
    shown = step("get", "pod", name)
    cluster.eventually("the pod has a card", lambda: cluster.kubectl(*shown))
    (card,) = json.loads(cluster.kubectl(*shown))["gpu"]
    assert f"{NODE}-GPU-{card['minor']}" != HELD
    assert NODE in run(cluster, *explained[1:])[1]

    cards = step("get", "pods", "--all-namespaces", "-o")
    assert re.search(rf"^{NAMESPACE} +{name} +{{", cluster.kubectl(*cards), re.MULTILINE)
    assert re.search(rf"^{NAMESPACE} +plugged +<none>", cluster.kubectl(*cards), re.MULTILINE)
