"""The agent's decisions for the frontends: the snapshot file, which the agent replaces atomically.

It has the wanted values of every container, which both the agent's cgroup writes and the hooks of
the frontends apply, the shared pools, the owners of CPUs, and patterns of the containers that
Topolet does not manage."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.devices.visibility import NodeVisibility, Visibility
from agent.model.linux_resources import NO_RESOURCES, LinuxResources
from agent.model.pod.qos import Pools, QoS

NUMA_NODES: Final = "TOPOLET_NUMA_NODES"
"""The variable of a container with devices that tells frameworks where to bind threads and
memory."""
OWN_CPUS: Final = "TOPOLET_OWN_CPUS"
"""The variable of a mixed container with the CPUs that nobody else runs on, as a list."""
SHARED_CPUS: Final = "TOPOLET_SHARED_CPUS"
"""The variable of a mixed container with its share of the pool, as a list."""
HOUSEKEEPING_CPUS: Final = "HOUSEKEEPING_CPUS"
"""CRI-O's variable of a container whose pod has `irq-load-balancing.crio.io: housekeeping`: those
of its own CPUs that keep interrupts, as a list."""


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The decision about one container."""

    resources: LinuxResources = NO_RESOURCES
    exclusive: bool = False
    """Whether its pod owns the CPUs."""
    kubelet: bool = False
    """Whether a kubelet with the static policy assigned the CPUs. A cpuset in the container's
    request overrides these."""
    blocked: str = ""
    """Why the container must not be created yet, for example because its CPUs are in use."""
    visible: Visibility | None = None
    """The value is None if the agent has not decided about the container's devices."""
    numa_nodes: str = ""
    """The NUMA nodes of its CPUs, as a list, for its variable NUMA_NODES; "" for a container
    without devices, which has no such variable."""
    shared: str | None = None
    """A mixed container has these CPUs of its pool, as a list, beside its own; "" while the pool is
    empty, None for a container that is not mixed."""
    housekeeping: str = ""
    """These of its own CPUs keep interrupts, as its variable HOUSEKEEPING_CPUS says; "" for a
    container without the variable."""
    least_shares: int = 0
    """The fewest CPU shares that it has, whatever its request says; 0 for no such bound."""

    def over(self, request: LinuxResources) -> LinuxResources:
        """The values of a container that requests these. A request without shares gets none."""
        resources = self.resources
        shares = request.shares if resources.shares is None else resources.shares
        if shares is None or shares >= self.least_shares:
            return resources
        return msgspec.structs.replace(resources, shares=self.least_shares)

    @property
    def own(self) -> CpuSet:
        """The CPUs that its pod owns; empty if that owns none."""
        if not self.exclusive:
            return EMPTY
        return CpuSet.parse(self.resources.cpuset or "") - CpuSet.parse(self.shared or "")

    @property
    def cpuset(self) -> str | None:
        """The cpuset, None when the container keeps its own."""
        return self.resources.cpuset

    @property
    def unmanaged(self) -> bool:
        """Whether Topolet sets neither CPUs nor limits of the container."""
        return self.resources == NO_RESOURCES

    def without(self, *fields: str) -> Wanted:
        """A copy that does not decide about these fields of its resources."""
        resources = self.resources.without(*fields)
        if resources is self.resources:
            return self
        return msgspec.structs.replace(self, resources=resources)


NOTHING: Final = Wanted()


class PodWanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The wanted values of a pod's containers."""

    title: str
    qos: QoS
    each: Wanted
    """The values of the containers that are not in `containers`."""
    containers: dict[str, Wanted] = {}
    """By name."""
    refused: str = ""
    """Why the pod does not own the CPUs that it claims."""
    group: LinuxResources = NO_RESOURCES
    """The values of the pod's cgroup."""
    far: Mapping[str, str] = {}
    """By container name, a sentence about each container that is not as near to its devices as its
    policy says, with the reason."""

    def of(self, container_name: str) -> Wanted:
        return self.containers.get(container_name, self.each)

    def with_visible(
        self, each: Visibility | None, containers: Mapping[str, Visibility]
    ) -> PodWanted:
        """A copy with the devices that its containers see, by name; `each` for all others."""
        names = self.containers.keys() | containers.keys()
        return msgspec.structs.replace(
            self,
            each=msgspec.structs.replace(self.each, visible=each),
            containers={
                name: msgspec.structs.replace(self.of(name), visible=containers.get(name, each))
                for name in sorted(names)
            },
        )

    @property
    def exclusive(self) -> bool:
        """Whether one of its containers may have its own CPUs."""
        return self.each.exclusive or any(each.exclusive for each in self.containers.values())


CpuPolicy: TypeAlias = Literal["none", "static", "dynamic"]
"""How the node itself gives containers their own CPUs (agent.allocate.node_local)."""


FILE: Final = "snapshot.json"
"""In the state folder."""
VERSION: Final = 1
"""The version of the file's format, which a change increases that an agent or a frontend of another
version would misunderstand. It is the file's first field."""
MAX_BYTES: Final = 16 << 20
"""A reader accepts no larger snapshot. 4,000 pods with 4,000 containers fit: the agent bounds what
each adds (`model.bounds`)."""


class SnapshotError(ValueError):
    """A snapshot text that can't be read; the message names the place."""


class Owner(msgspec.Struct, frozen=True):
    """A pod and the CPUs that it owns."""

    uid: str
    title: str
    qos: QoS
    cpuset: str
    """Without offline CPUs."""
    offline: str = ""
    """The CPUs of its claim that are offline, which stay reserved for it."""
    kubelet: bool = False
    """The CPUs are those of a static kubelet's checkpoint."""
    claims: bool = False
    """The CPUs are those of ResourceClaims that this agent prepared."""
    sharers: tuple[str, ...] = ()
    """The uids of other pods that use the same claims."""

    @property
    def cpus(self) -> CpuSet:
        return CpuSet.parse(self.cpuset)

    @property
    def claimed(self) -> CpuSet:
        """Its CPUs, including offline ones."""
        return self.cpus | CpuSet.parse(self.offline)

    def is_of(self, uid: str) -> bool:
        """Whether the pod with this uid has the CPUs, alone or with others by a claim."""
        return uid == self.uid or uid in self.sharers


class LocalOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container and the CPUs that a node-local policy gave it. A container that has ended keeps
    them for its pod."""

    uid: str
    name: str
    cpuset: str
    """Empty if no CPUs were left."""
    original: str = ""
    """The part of these CPUs that it had before it was resized."""


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="version", tag=VERSION):
    """The agent's decisions at one moment."""

    generation: int
    listed_at: int
    """When the agent began to list the runtime's containers (CLOCK_MONOTONIC, nanoseconds): every
    container whose creation was answered before is in `containers` or gone."""
    boot_id: str
    kubelet_static: bool
    pools: Pools
    owners: tuple[Owner, ...]
    pods: dict[str, PodWanted]
    containers: dict[str, Wanted]
    """By container id."""
    excluded: tuple[str, ...] = ()
    """Patterns of the containers that are not managed (see `excludes`)."""
    cpu_policy: CpuPolicy = "none"
    local_owners: tuple[LocalOwner, ...] = ()
    """Their pods are in `owners` too."""
    announced: tuple[str, ...] = ()
    """The uids of the announced pods that this pass has handled: the runtime may create their
    sandbox."""
    devices: NodeVisibility | None = None
    """None: the agent does not decide about device visibility."""
    places_devices: bool = False
    """The agent decides on which NUMA nodes containers with devices run: their creation waits until
    it knows their pod and its devices."""
    unplaced: tuple[str, ...] = ()
    """The uids of pods whose ResourceClaims the kubelet has not reported yet."""
    gives_claims: bool = False
    """The agent is a DRA driver: a container with CPUs of a ResourceClaim waits for its decision
    about them."""


def encode(snapshot: Snapshot) -> bytes:
    """JSON, one line."""
    return msgspec.json.encode(snapshot) + b"\n"


class _Versioned(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


_decoder = msgspec.json.Decoder(Snapshot)
_version_decoder = msgspec.json.Decoder(_Versioned)


def decode(text: bytes) -> Snapshot:
    """Raises SnapshotError, also for a snapshot of another version."""
    try:
        return bounds.decode(_decoder, text)
    except JsonError as error:
        with contextlib.suppress(JsonError):
            version = bounds.decode(_version_decoder, text).version
            if version != VERSION:
                raise SnapshotError(
                    f"snapshot: has the version {version}, and only version {VERSION} can be read"
                ) from None
        raise SnapshotError(f"snapshot: {error}") from None


Patterns = tuple[str, ...]


_PARTS: Final = 3
_WILDCARDS: Final = ("*", "?", "[")


class ExclusionError(ValueError):
    """An invalid pattern; the message quotes it."""


def parse_patterns(text: str) -> Patterns:
    """Comma-separated `NAMESPACE`, `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`, each part with `*`
    and `?`. The namespace begins with a literal name or prefix: who creates a pod chooses the names
    of pod and containers, and only in the namespaces where it may create pods. Raises
    ExclusionError."""
    patterns = tuple(part for each in text.split(",") if (part := each.strip()))
    for pattern in patterns:
        if pattern.count("/") >= _PARTS or "" in pattern.split("/"):
            raise ExclusionError(
                f"{pattern!r} is not NAMESPACE, NAMESPACE/POD or NAMESPACE/POD/CONTAINER"
            )
        if pattern.startswith(_WILDCARDS):
            raise ExclusionError(
                f"{pattern!r}: the namespace begins with a wildcard, so that every tenant could "
                "exclude its pods: list the namespaces, or prefixes of their names"
            )
    return patterns


def excludes_any(patterns: Sequence[str], namespace: str, pod: str) -> bool:
    """Whether a pattern names the pod, its namespace, or a container of it."""
    return any(
        all(fnmatchcase(name, part) for name, part in zip((namespace, pod), parts, strict=False))
        for parts in (pattern.split("/") for pattern in patterns)
    )


def excludes(patterns: Sequence[str], namespace: str, pod: str, container: str = "") -> bool:
    """Whether a pattern names the container, its pod or its namespace; without a container, whether
    it excludes the whole pod."""
    names = (namespace, pod, container)
    return any(
        all(fnmatchcase(name, part) for name, part in zip(names, pattern.split("/"), strict=False))
        for pattern in patterns
        if container or pattern.count("/") < _PARTS - 1
    )
