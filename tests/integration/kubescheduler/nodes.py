"""Nodes with the objects of an agent: NodeResourceTopology, Device, and the Ready agent pod."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from agent.kube.errors import NotFoundError
from agent.model.cpu.cpuset import EMPTY
from agent.model.cpu.topology import Cpu, Topology
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.nrt import resource_topology
from agent.model.nrt.node_annotations import NodeConfiguration, koordinator_annotations
from agent.model.nrt.resource_topology import Amounts, NodeTopology, Zone
from agent.scheduler.state.records import AGENT_LABELS
from conformance import machines
from tests.deploy.manifests import objects as manifests
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects

SYSTEM = "topolet-system"
GIB = 1 << 30
Shape = tuple[int, int, int, int]
"""Sockets, NUMA nodes per socket, cores per NUMA node, threads per core."""

TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


def install(api: ApiServer) -> None:
    """Applies what all nodes need: the CRDs and the namespace of the agents."""
    for each in manifests("crds"):
        api.apply(each)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    api.default_account(SYSTEM)


class Nodes:
    """The nodes of one test. Only pods with `selector` run on them."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self._api = api
        self._name = name
        self._numbers = itertools.count()
        self.names: list[str] = []

    @property
    def selector(self) -> dict[str, str]:
        return {"topolet.io/test": self._name}

    def add(
        self,
        shape: Shape = (2, 1, 4, 2),
        devices: Sequence[Device] = (),
        *,
        labels: Mapping[str, str] | None = None,
        with_topology: bool = True,
        ready: bool = True,
    ) -> str:
        """Creates a node. Returns its name."""
        name = f"{self._name}-{next(self._numbers)}"
        cpus = machines.cpus(shape, "adjacent")
        nodes = len({each.node for each in cpus})
        amounts = {"cpu": str(len(cpus)), "memory": f"{16 * nodes}Gi", **_extended(devices)}
        objects.ready_node(self._api, name, amounts, labels={**self.selector, **(labels or {})})
        self.names.append(name)
        if with_topology:
            self.report_topology(name, shape)
        if devices:
            self.report_devices(name, devices)
        self.add_agent(name, ready=ready)
        return name

    def report_topology(self, name: str, shape: Shape = (2, 1, 4, 2)) -> None:
        """Writes the NodeResourceTopology of the node."""
        cpus = machines.cpus(shape, "adjacent")
        body = resource_topology.encode(_topology(name, cpus), resource_topology.Version.V1ALPHA2)
        self._api.admin.apply(f"{TOPOLOGIES}/{name}", body)

    def report_devices(self, name: str, devices: Sequence[Device]) -> None:
        """Writes the Device object of the node."""
        self._api.admin.apply(f"{DEVICES}/{name}", device_object.encode(name, devices))

    def add_agent(self, name: str, *, ready: bool = True) -> None:
        """Creates the agent pod of the node."""
        pod = objects.pod_manifest(SYSTEM, f"agent-{name}", {}, scheduler="", labels=AGENT_LABELS)
        pod["spec"]["nodeName"] = name
        objects.create(self._api, pod)
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        self._api.admin.merge(
            f"/api/v1/namespaces/{SYSTEM}/pods/agent-{name}/status",
            {"status": {"phase": "Running", "conditions": [condition]}},
        )

    def delete(self) -> None:
        for name in self.names:
            objects.force_delete(self._api, SYSTEM, f"agent-{name}")
            for path in (f"{TOPOLOGIES}/{name}", f"{DEVICES}/{name}", f"/api/v1/nodes/{name}"):
                with contextlib.suppress(NotFoundError):
                    self._api.admin.delete(path)


@contextlib.contextmanager
def nodes_for(api: ApiServer, name: str) -> Iterator[Nodes]:
    it = Nodes(api, name)
    try:
        yield it
    finally:
        it.delete()


def _topology(name: str, cpus: Sequence[Cpu]) -> NodeTopology:
    zones = []
    for node in sorted({each.node for each in cpus}):
        milli = 1000 * sum(each.node == node for each in cpus)
        zones.append(
            Zone(
                node,
                {
                    "cpu": Amounts(milli, milli, milli),
                    "memory": Amounts(16 * GIB, 16 * GIB, 16 * GIB),
                },
            )
        )
    machine = Topology(tuple(cpus), (), EMPTY, EMPTY, smt=True)
    notes = koordinator_annotations(machine, {}, (), NodeConfiguration())
    return NodeTopology(name, tuple(zones), annotations=notes)


def _extended(devices: Sequence[Device]) -> dict[str, str]:
    """The sums of the resources of the devices."""
    sums: dict[str, int] = {}
    for each in devices:
        for name, amount in each.resources.items():
            sums[name] = sums.get(name, 0) + amount
    return {name: str(amount) for name, amount in sums.items()}
