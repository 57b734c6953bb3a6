"""One node as the watches show it: its objects, its agent, and the place that follows from them."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping

import msgspec

from agent.allocate import scoring
from agent.allocate.nodefacts import node_facts
from agent.allocate.place.facts import PlaceFacts, PlaceRules, place_facts
from agent.allocate.place.place import Place
from agent.allocate.place.wish import Needs
from agent.allocate.precedence import PROFILES
from agent.allocate.zoned.node import ZoneFacts
from agent.model.deviceobject import DeviceObject
from agent.model.nodetopology import NodeTopology
from agent.scheduler.census import Census
from agent.scheduler.readings import NodeReading, PodReading, Unreadable
from agent.scheduler.zones import left, speaks, word

log = logging.getLogger(__name__)


class News(enum.Enum):
    """What of a node is new: but its own word on what its NUMA nodes have left, or more."""

    NOTHING = enum.auto()
    WORD = enum.auto()
    ALL = enum.auto()


class NodeState:
    """Mutable, one thread at a time. Anything of it may come before anything else: a pod before its
    Node, whose `node` is None then."""

    __slots__ = (
        "_agents",
        "_census",
        "_hindrances",
        "_outdated",
        "_place",
        "_pods",
        "_recount",
        "_rules",
        "_unread",
        "devices",
        "name",
        "node",
        "topology",
    )

    def __init__(
        self, name: str, pods: Mapping[str, PodReading], rules: PlaceRules | None = None
    ) -> None:
        """`pods`: those of the whole cluster that are bound, by uid."""
        self.name = name
        self.node: NodeReading | None = None
        self.topology: NodeTopology | Unreadable | None = None
        self.devices: DeviceObject | Unreadable | None = None
        self._pods = pods
        self._rules = rules or PlaceRules()
        self._agents: dict[str, bool] = {}
        self._hindrances: dict[int, str | None] = {}
        self._outdated = False
        self._recount = self._unread = False
        self._census = Census(pods)
        self._place = Place(place_facts(name, {}, rules=self._rules))

    @property
    def place(self) -> Place:
        """What the pods and the reservations hold, on the node as its objects are now."""
        if self._outdated:
            facts = msgspec.structs.replace(self._facts(), zones=self._word())
            for fault in facts.faults:
                if fault not in self._place.facts.faults:
                    log.warning("node %s: %s", self.name, fault)
            self._place = self._place.with_facts(facts, self._promised())
        if self._outdated or self._recount:
            self._count()
        self._outdated = self._recount = self._unread = False
        return self._place

    # Each says what is new by it.
    def see_node(self, node: NodeReading | None) -> News:
        if self.node == node:
            return News.NOTHING
        self.node, self._outdated = node, True
        return News.ALL

    def see_devices(self, devices: DeviceObject | Unreadable | None) -> News:
        if self.devices == devices:
            return News.NOTHING
        self.devices, self._outdated = devices, True
        return News.ALL

    def see_topology(self, topology: NodeTopology | Unreadable | None) -> News:
        """The agent tells of what is left, and of which pods that is, with every pod that comes or
        goes."""
        before, self.topology = self.topology, topology
        if before == topology:
            return News.NOTHING
        self._recount = self._unread = True
        self._census.reported()
        told = isinstance(before, NodeTopology) and isinstance(topology, NodeTopology)
        if told and not self._outdated:
            standing = self._place.facts
            if msgspec.structs.replace(self._facts(), zones=standing.zones) == standing:
                return News.WORD if self._speaks() else News.NOTHING
        self._outdated = True
        return News.ALL

    def see_pod(self, pod: PodReading, *, new: bool = False) -> News:
        """A pod here that has begun, or ended, or not yet; `new`: it was but promised before."""
        self._census.seen(pod, new=new)
        return self._counted_anew()

    def lose_pod(self, pod: PodReading) -> News:
        """It is no more, or elsewhere; as it was."""
        self._census.went(pod)
        return self._counted_anew()

    def _counted_anew(self) -> News:
        if not self._speaks():
            return News.NOTHING
        self._recount = True
        return News.WORD

    @property
    def agent_ready(self) -> bool:
        return any(self._agents.values())

    @property
    def empty(self) -> bool:
        """Nothing is known of it any more."""
        known = (self.node, self.topology, self.devices)
        return (
            known == (None, None, None)
            and not self._agents
            and not self._place.holdings
            and self._census.empty
        )

    def changed(self) -> None:
        """Its objects, what it holds, or its agent."""
        self._hindrances.clear()

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
        """Why no such pod can come here, whatever is free. `agents`: a node must have one to give
        CPUs or devices."""
        key = needs.value
        if key not in self._hindrances:
            self._hindrances[key] = self._hindered(needs, agents)
        return self._hindrances[key]

    def _facts(self) -> PlaceFacts:
        """But for what its NUMA nodes have left."""
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

    def _promised(self) -> list[str]:
        return [uid for uid in self._place.holdings if uid not in self._pods]

    def _word(self) -> ZoneFacts | None:
        """None too where no pod would be refused or liked less for it."""
        if not isinstance(self.topology, NodeTopology) or not self._speaks():
            return None
        return word(self.topology, self.node.allocatable if self.node else ())

    def _count(self) -> None:
        """Of the place's pods those that the node's word leaves out."""
        found = self._place.facts.zones
        if self._unread and not self._outdated:
            found = self._word()
        if found is None:
            self._place.hear(None, None)
            return
        pods = [self._pods[uid] for uid in self._place.holdings if uid in self._pods]
        beside = left(found, self._census, pods, self._place.facts.cpus)
        self._place.hear(found, beside, self._promised())

    def _speaks(self) -> bool:
        topology = self.topology
        return isinstance(topology, NodeTopology) and speaks(topology, self._rules.zones.type)

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
