"""All that a node reports, before it is put into objects."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model import nodestatus
from agent.model.availability import Held, Reserved, core_kinds, zones
from agent.model.device_allocation import Holdings
from agent.model.deviceobject import Device, Portion, portions
from agent.model.node_annotations import (
    NodeConfiguration,
    PodCpuAlloc,
    koordinator_annotations,
)
from agent.model.nodestatus import GpuFacts, node_labels
from agent.model.nodetopology import FINGERPRINT_METHOD, NodeTopology, OwnerReference
from agent.model.snapshot import Pool
from agent.model.topology import Topology

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER: Final = {MANAGED_BY: "topolet"}


class DeviceReport(msgspec.Struct, frozen=True):
    """The devices of a node, and what its pods hold of them. `annotations`: of its Device object;
    `gfd_labels`: the Node gets those of NVIDIA's feature discovery too. `withheld`: the devices
    that Device object and Node list instead, for schedulers that don't know the other holders."""

    devices: tuple[Device, ...] = ()
    gpus: GpuFacts = GpuFacts()
    annotations: dict[str, str] = {}
    held: Holdings = {}
    gfd_labels: bool = False
    withheld: tuple[Device, ...] | None = None

    @property
    def listed(self) -> tuple[Device, ...]:
        """For schedulers."""
        return self.devices if self.withheld is None else self.withheld


class Facts(msgspec.Struct, frozen=True):
    """The input of a report. `plugged`: devices of the kubelet's plugins. `owner` and `fingerprint`
    None: without a cluster."""

    name: str
    topology: Topology
    ls_pools: tuple[Pool, ...]
    be_pools: tuple[Pool, ...]
    allocs: tuple[PodCpuAlloc, ...]
    held: tuple[Held, ...]
    reserved: Reserved
    configured: NodeConfiguration
    devices: DeviceReport = DeviceReport()
    plugged: tuple[Portion, ...] = ()
    owner: OwnerReference | None = None
    fingerprint: str | None = None


class Report(msgspec.Struct, frozen=True):
    """`labels`: those of the Node that are ours; `resources`: what devices add to it, by name."""

    topology: NodeTopology
    labels: dict[str, str]
    resources: dict[str, int]
    devices: DeviceReport


def built(facts: Facts) -> Report:
    """The same facts make the same report."""
    devices, configured = facts.devices.devices, facts.configured
    attributes = core_kinds(facts.topology)
    if facts.fingerprint is not None:
        attributes[FINGERPRINT_METHOD] = "all"
    gpu_labels = nodestatus.gpu_labels(facts.devices.gpus, devices, gfd=facts.devices.gfd_labels)
    topology = NodeTopology(
        facts.name,
        zones(
            facts.topology,
            facts.held,
            facts.reserved,
            portions(devices, facts.devices.held) + facts.plugged,
        ),
        configured.topology_policy,
        configured.topology_scope,
        configured.max_numa_nodes,
        facts.fingerprint,
        attributes,
        dict(MANAGER),
        koordinator_annotations(
            facts.topology, facts.ls_pools, facts.be_pools, facts.allocs, configured
        ),
        facts.owner,
    )
    return Report(
        topology,
        {**node_labels(facts.topology), **gpu_labels},
        nodestatus.extended_resources(facts.devices.listed, facts.devices.gpus),
        facts.devices,
    )
