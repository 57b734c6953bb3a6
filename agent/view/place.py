"""Where the containers of a pod run on their node, and why not nearer to their devices."""

from __future__ import annotations

import msgspec

from agent.model.cpu.cpuset import CpuSet
from agent.model.snapshot import PodWanted, Snapshot, Wanted
from agent.view.format import printable, printable_json

SCHEMA_VERSION = 1
"""The version of the JSON output."""


class ContainerPlace(msgspec.Struct, frozen=True):
    """The CPUs of a container."""

    name: str
    """It is "" for all containers of the pod without a place of their own."""
    cpus: str
    """Empty if Topolet does not set them."""
    numa_nodes: str
    """The NUMA nodes of the CPUs; empty for a container without devices."""
    exclusive: bool
    """Whether the pod owns the CPUs."""
    far: str = ""
    """Why it is not as near to its devices as its policy says; empty if it is."""
    shared: str | None = None
    """Those of its CPUs that it shares with its pool; null if it owns all, or none."""

    @property
    def text(self) -> str:
        """Its CPUs for people."""
        if self.shared is None:
            return f"CPUs {self.cpus}{' of its own' if self.exclusive else ''}"
        own = CpuSet.parse(self.cpus) - CpuSet.parse(self.shared)
        return f"CPUs {own} of its own and {self.shared or 'none'} of its pool"


class PodOnNode(msgspec.Struct, frozen=True):
    """The containers of a pod."""

    pod: str
    containers: tuple[ContainerPlace, ...]
    claims: tuple[str, ...] = ()
    """Sentences about its ResourceClaims."""
    schema_version: int = SCHEMA_VERSION


def shown(snapshot: Snapshot, title: str) -> PodOnNode | None:
    """The place of the pod with this namespace and name, None if the snapshot has no such pod."""
    for pod in snapshot.pods.values():
        if pod.title == title:
            names = sorted(pod.containers)
            containers = [_of(pod, name, pod.containers[name]) for name in names]
            return PodOnNode(title, (*containers, _of(pod, "", pod.each)))
    return None


def _of(pod: PodWanted, name: str, wanted: Wanted) -> ContainerPlace:
    far = pod.far.get(name, "")
    return ContainerPlace(
        name,
        wanted.cpuset or "",
        wanted.numa_nodes,
        wanted.exclusive,
        far if name else "",
        wanted.shared,
    )


def as_text(place: PodOnNode) -> str:
    """A line for each container, and one for all others."""
    lines = [f"Pod {place.pod} on its node:"]
    lines += [f"  {_line(each)}" for each in place.containers]
    lines += [f"  {sentence}" for sentence in place.claims]
    return "\n".join(map(printable, lines)) + "\n"


def as_json(place: PodOnNode) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(place)).decode()) + "\n"


def _line(at: ContainerPlace) -> str:
    who = f"container {at.name}" if at.name else "any other container"
    if not at.cpus:
        return f"{who}: its CPUs are not Topolet's"
    if not at.numa_nodes:
        return f"{who}: {at.text}; it has no devices that are known here"
    nodes = f"{at.text} on NUMA nodes {at.numa_nodes}"
    if at.far:
        return f"{who}: {nodes}; {at.far}"
    near = "it has devices" if at.exclusive else "near to its devices"
    return f"{who}: {nodes}; {near}"
