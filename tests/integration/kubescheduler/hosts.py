"""Nodes as an agent would report them: Node, NodeResourceTopology, Device, and a Ready agent."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

from agent.conformance import machines
from agent.kube.errors import NotFoundError
from agent.model.cpu.cpuset import EMPTY
from agent.model.cpu.topology import Cpu, Topology
from agent.model.devices import device_object
from agent.model.devices.device_object import Device
from agent.model.nrt import resource_topology
from agent.model.nrt.node_annotations import NodeConfiguration, koordinator_annotations
from agent.model.nrt.resource_topology import Amounts, NodeTopology, Zone
from agent.scheduler.state.records import AGENT_LABELS
from tests.deploy.manifests import objects as manifests
from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import objects

SYSTEM = "topolet-system"
GIB = 1 << 30
Shape = tuple[int, int, int, int]
"""Sockets, NUMA nodes per socket, cores per NUMA node, threads per core."""

TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"


def furnish(api: ApiServer) -> None:
    """Objects that all hosts need: kinds, and the agents' namespace."""
    for each in manifests("crds"):
        api.apply(each)
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    account = {"name": "default", "namespace": SYSTEM}
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})


class Hosts:
    """Nodes of one test, which only its pods select: `selector`."""

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
        told: bool = True,
        ready: bool = True,
    ) -> str:
        """Returns its name. Without `told`, its NodeResourceTopology is created later (`tell`)."""
        name = f"{self._name}-{next(self._numbers)}"
        cpus = machines.cpus(shape, "adjacent")
        nodes = len({each.node for each in cpus})
        amounts = {"cpu": str(len(cpus)), "memory": f"{16 * nodes}Gi", **_extended(devices)}
        objects.ready_node(self._api, name, amounts, labels={**self.selector, **(labels or {})})
        self.names.append(name)
        if told:
            self.tell(name, shape)
        if devices:
            self.tell_devices(name, devices)
        self.agent(name, ready=ready)
        return name

    def tell(self, name: str, shape: Shape = (2, 1, 4, 2)) -> None:
        """Its NodeResourceTopology."""
        cpus = machines.cpus(shape, "adjacent")
        body = resource_topology.encode(_topology(name, cpus), resource_topology.Version.V1ALPHA2)
        self._api.admin.apply(f"{TOPOLOGIES}/{name}", body)

    def tell_devices(self, name: str, devices: Sequence[Device]) -> None:
        """Its Device."""
        self._api.admin.apply(f"{DEVICES}/{name}", device_object.encode(name, devices))

    def offer(self, name: str, devices: Sequence[Device]) -> None:
        """The sums in the Node's status."""
        amounts = _extended(devices)
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        self._api.admin.merge(f"/api/v1/nodes/{name}/status", status)

    def agent(self, name: str, *, ready: bool = True) -> None:
        """The agent's pod."""
        pod = objects.pending(SYSTEM, f"agent-{name}", {}, scheduler="", labels=AGENT_LABELS)
        pod["spec"]["nodeName"] = name
        objects.create(self._api, pod)
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        self._api.admin.merge(
            f"/api/v1/namespaces/{SYSTEM}/pods/agent-{name}/status",
            {"status": {"phase": "Running", "conditions": [condition]}},
        )

    def end(self) -> None:
        for name in self.names:
            objects.end(self._api, SYSTEM, f"agent-{name}")
            for path in (f"{TOPOLOGIES}/{name}", f"{DEVICES}/{name}", f"/api/v1/nodes/{name}"):
                with contextlib.suppress(NotFoundError):
                    self._api.admin.delete(path)


@contextlib.contextmanager
def hosts(api: ApiServer, name: str) -> Iterator[Hosts]:
    it = Hosts(api, name)
    try:
        yield it
    finally:
        it.end()


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
    notes = koordinator_annotations(machine, (), (), (), NodeConfiguration())
    return NodeTopology(name, tuple(zones), annotations=notes)


def _extended(devices: Sequence[Device]) -> dict[str, str]:
    """The sums of the devices, as the node reports them."""
    sums: dict[str, int] = {}
    for each in devices:
        for name, amount in each.resources.items():
            sums[name] = sums.get(name, 0) + amount
    return {name: str(amount) for name, amount in sums.items()}
