"""What stands about a node, read from its Node and its NodeResourceTopology.

CPUs and the kubelet's words are the NodeResourceTopology's; labels and amplification the Node's
(Koordinator: pkg/scheduler/plugins/nodenumaresource, NewTopologyOptions in topology_options.go and
amplifyNUMANodeResources in util.go). Where one word about which CPUs may be owned can't be read,
none is bound: nobody knows whose they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from agent.allocate import layout as layouts
from agent.allocate import policies_in_force
from agent.allocate.layout import Layout
from agent.allocate.node import Amounts, NodeFacts
from agent.allocate.policies_in_force import PROFILES, Profile
from agent.model import nodecpus
from agent.model.annotations import AnnotationError
from agent.model.cpuset import EMPTY, CpuSet, union
from agent.model.node_annotations import amplification_ratios, node_reservation, system_qos
from agent.model.nodecpus import CpuManager
from agent.model.nodetopology import NodeTopology
from agent.model.topology import Cpu

_NO_CLAIMS: Final[Mapping[str, CpuSet]] = {}


def node_facts(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    topology: NodeTopology,
    cpu_milli: int | None = None,
    profile: Profile = PROFILES["koordinator"],
    claims: Mapping[str, CpuSet] = _NO_CLAIMS,
) -> tuple[NodeFacts, tuple[str, ...]]:
    """The facts, and a complaint for every word that means nothing. `labels` and `annotations` are
    the Node's, `cpu_milli` what it calls allocatable (amplified already), None if unknown.
    `claims`: the CPUs that pods hold by their annotations, by uid: where the kubelet gave a pod
    those, they are counted as the pod's and not a second time as the kubelet's; where it gave it
    others, both are taken."""
    faults: list[str] = []
    cpus = _NO_CPUS
    try:
        cpus = _cpus(topology, claims)
    except AnnotationError as error:
        faults.append(str(error))
    ratios: Mapping[str, float] = {}
    try:
        ratios = amplification_ratios(annotations)
    except AnnotationError as error:
        faults.append(str(error))
    policies, complaints = policies_in_force.node_policies(
        labels, topology.policy, cpus.manager.static_options()
    )
    facts = NodeFacts(
        layout=cpus.layout,
        zones=_zones(topology, ratios),
        reserved=cpus.reserved,
        kubelet_reserved=cpus.kubelet_reserved,
        policies=policies,
        profile=profile,
        cpu_ratio=ratios.get("cpu", 1.0),
        cpu_milli=cpu_milli,
        kubelet_static=cpus.manager.static_options() is not None,
    )
    return facts, (*faults, *complaints)


class _Cpus(msgspec.Struct, frozen=True):
    layout: Layout | None = None
    reserved: CpuSet = EMPTY
    kubelet_reserved: CpuSet = EMPTY
    manager: CpuManager = CpuManager()


_NO_CPUS: Final = _Cpus()


def _cpus(topology: NodeTopology, claims: Mapping[str, CpuSet]) -> _Cpus:
    notes = topology.annotations
    manager = nodecpus.cpu_manager(notes)
    system = system_qos(notes)
    allocated = nodecpus.kubelet_allocated(notes)
    given = union(cpus - claims.get(uid, EMPTY) for uid, cpus in allocated.items())
    reserved = given | node_reservation(notes).cpus()
    if system.cpuset_exclusive:
        reserved |= system.cpus()
    kubelets = manager.reserved()
    return _Cpus(
        _layout(nodecpus.cpus(topology)), reserved | kubelets, kubelets - reserved, manager
    )


@lru_cache(maxsize=256)
def _layout(cpus: tuple[Cpu, ...]) -> Layout | None:
    """Nodes of one model share theirs."""
    return layouts.of(cpus) if cpus else None


def _zones(topology: NodeTopology, ratios: Mapping[str, float]) -> Amounts:
    """CPU is amplified by the facts, which take reserved CPUs off first."""
    return {
        zone.node: {
            name: math.ceil(amounts.allocatable * ratios[name])
            if name in ratios and name != "cpu"
            else amounts.allocatable
            for name, amounts in zone.resources.items()
        }
        for zone in topology.zones
    }
