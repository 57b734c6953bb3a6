"""One node as the watches show it: its objects, its agent, and the place that follows from them."""

from __future__ import annotations

from agent.allocate import scoring
from agent.allocate.nodefacts import node_facts
from agent.allocate.place.facts import PlaceFacts, PlaceRules, place_facts
from agent.allocate.place.place import Place
from agent.allocate.place.wish import Needs
from agent.allocate.precedence import PROFILES
from agent.model.deviceobject import DeviceObject
from agent.model.nodetopology import NodeTopology
from agent.scheduler.readings import NodeReading, Unreadable


class NodeState:
    """Mutable, one thread at a time. Anything of it may come before anything else: a pod before its
    Node, whose `node` is None then."""

    __slots__ = (
        "_agents",
        "_hindrances",
        "_outdated",
        "_place",
        "_rules",
        "devices",
        "name",
        "node",
        "serial",
        "topology",
    )

    def __init__(self, name: str, rules: PlaceRules | None = None) -> None:
        self.name = name
        self._rules = rules or PlaceRules()
        self.node: NodeReading | None = None
        self.topology: NodeTopology | Unreadable | None = None
        self.devices: DeviceObject | Unreadable | None = None
        self.serial = 0
        self._agents: dict[str, bool] = {}
        self._hindrances: dict[int, str | None] = {}
        self._outdated = False
        self._place = Place(place_facts(name, {}))

    @property
    def place(self) -> Place:
        """What the pods and the reservations hold, on the node as its objects are now."""
        if self._outdated:
            self._outdated = False
            self._place = self._place.with_facts(self._facts())
        return self._place

    @property
    def agent_ready(self) -> bool:
        return any(self._agents.values())

    @property
    def empty(self) -> bool:
        """Nothing is known of it any more."""
        known = (self.node, self.topology, self.devices)
        return known == (None, None, None) and not self._agents and not self._place.holdings

    def changed(self, serial: int) -> None:
        """What it holds, or its agent."""
        self.serial = serial
        self._hindrances.clear()

    def objects_changed(self, serial: int) -> None:
        self._outdated = True
        self.changed(serial)

    def agent(self, uid: str, ready: bool | None) -> bool:
        """The agent's pod of that uid is there and Ready or not, or gone (None). True where that is
        new."""
        if self._agents.get(uid) == ready:
            return False
        if ready is None:
            del self._agents[uid]
        else:
            self._agents[uid] = ready
        return True

    def hindrance(self, needs: Needs, *, agents: bool) -> str | None:
        """Why no pod with such needs can come here, whatever is free. `agents`: a node must have
        one to give CPUs or devices."""
        key = needs.value
        if key not in self._hindrances:
            self._hindrances[key] = self._hindered(needs, agents)
        return self._hindrances[key]

    def _facts(self) -> PlaceFacts:
        node = self.node or NodeReading(self.name, "")
        device = self.devices if isinstance(self.devices, DeviceObject) else None
        rules, allocatable = self._rules, node.allocatable
        if not isinstance(self.topology, NodeTopology):
            return place_facts(self.name, node.labels, None, device, rules, allocatable=allocatable)
        cpus, faults = node_facts(
            node.labels,
            node.annotations,
            self.topology,
            allocatable.get("cpu"),
            scoring.profile(rules.scoring) if rules.scoring else PROFILES["koordinator"],
        )
        return place_facts(self.name, node.labels, cpus, device, rules, faults, allocatable)

    def _hindered(self, needs: Needs, agents: bool) -> str | None:
        if self.node is None:
            return "the node is not known"
        if Needs.CPUS in needs and not isinstance(self.topology, NodeTopology):
            return _missing("NodeResourceTopology", self.topology)
        if Needs.DEVICES in needs and not isinstance(self.devices, DeviceObject):
            return _missing("Device", self.devices)
        if agents and needs & (Needs.CPUS | Needs.DEVICES) and not self.agent_ready:
            return "its agent is not Ready" if self._agents else "it has no agent"
        return None


def _missing(kind: str, found: Unreadable | object | None) -> str:
    return found.text if isinstance(found, Unreadable) else f"it has no {kind}"
