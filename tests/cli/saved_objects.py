"""Objects of a cluster in files, as `kubectl get -o yaml` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from agent.model.pod.annotations import RESOURCE_STATUS
from tests.fixtures import fleet
from tests.fixtures.fleet import CARDS, SMALL, owner

Object = dict[str, Any]


def kind(name: str, body: Object) -> Object:
    return {"apiVersion": "v1", **body, "kind": name}


def saved(folder: Path, *pods: Object) -> str:
    """Two small nodes and one with cards, as `kubectl get -o yaml` writes them, with these pods."""
    machines = {"a": SMALL, "b": SMALL, "c": CARDS}
    nodes, reports, devices = [], [], []
    for name, model in machines.items():
        machine = fleet.Machine(model)
        nodes.append(kind("Node", machine.node(name)))
        reports.append(kind("NodeResourceTopology", machine.topology(name)))
        devices.append(kind("Device", machine.devices(name)))
    agents = [of_daemon_set(fleet.agent(name)) for name in machines]
    (folder / "nodes.yaml").write_text(yaml.safe_dump({"kind": "NodeList", "items": nodes}))
    (folder / "reports.json").write_text(json.dumps({"kind": "List", "items": reports}))
    (folder / "devices.yml").write_text(yaml.safe_dump_all(devices))
    listed = [kind("Pod", each) for each in (*agents, *pods)]
    (folder / "pods.yaml").write_text(yaml.safe_dump({"kind": "List", "items": listed}))
    return f"--objects={folder}"


def of_daemon_set(body: Object) -> Object:
    body["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "uid": "u"}]
    return body


def bound(name: str, node: str, cpus: str, **spec: Any) -> Object:
    body = owner(8, 8).pod(name, node=node)
    body["metadata"]["annotations"][RESOURCE_STATUS] = json.dumps({"cpuset": cpus})
    body["spec"].update(spec)
    return body
