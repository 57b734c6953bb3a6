"""A Cluster that was told of a few nodes of a made-up fleet, and pods that ask for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.allocate.place.wish import Wish, wish_of
from agent.kube.objects import Change, ChangeKind, Key
from agent.model import apipods
from agent.model.apipods import ApiPod
from agent.scheduler import readings
from agent.scheduler.cluster import Cluster
from agent.scheduler.readings import Agents, PodReading
from benchmarks import fleet
from benchmarks.fleet import Kind, Model

Object = dict[str, Any]

_read_pod = readings.pods(Agents())


def cluster(nodes: Mapping[str, Model]) -> Cluster:
    """Each with its agent."""
    known = Cluster()
    for name, model in nodes.items():
        add(known, name, model)
    return known


def add(known: Cluster, name: str, model: Model, *, agent: bool = True) -> None:
    """A node of that model comes."""
    machine, added = fleet.Machine(model), ChangeKind.ADDED
    node, topology, devices = machine.node(name), machine.topology(name), machine.devices(name)
    key = Key("", name)
    known.nodes_changed([Change(added, key, readings.node(json.dumps(node).encode()))])
    known.topologies_changed([Change(added, key, readings.topology(json.dumps(topology).encode()))])
    if model.gpus:
        known.devices_changed([Change(added, key, readings.devices(json.dumps(devices).encode()))])
    if agent:
        tell(known, fleet.agent(name))


def remove(known: Cluster, name: str) -> None:
    """A node goes; its pods stay for a while."""
    key = Key("", name)
    read = readings.node(json.dumps({"metadata": {"name": name}}).encode())
    known.nodes_changed([Change(ChangeKind.DELETED, key, read)])


def tell(known: Cluster, pod: Object, kind: ChangeKind = ChangeKind.MODIFIED) -> None:
    """What a watch shows of a pod."""
    metadata = pod["metadata"]
    value: PodReading = _read_pod(json.dumps(pod).encode())
    known.pods_changed([Change(kind, Key(metadata["namespace"], metadata["name"]), value)])


def read(body: Object) -> ApiPod:
    """A pod as kube-scheduler sends it."""
    return apipods.from_object(body)


def pod(kind: Kind, name: str) -> ApiPod:
    return read(kind.pod(name))


def wish(kind: Kind, name: str = "p") -> Wish:
    return wish_of(pod(kind, name))
