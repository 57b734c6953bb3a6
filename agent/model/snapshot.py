"""The agent's snapshot for the frontends: one small file, replaced atomically."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpuset import CpuSet, union
from agent.model.qos import QoS
from agent.model.visible import VisibleDevices
from agent.model.wanted import PodWanted, Wanted

CpuPolicy: TypeAlias = Literal["none", "static", "dynamic"]
"""Who gives containers CPUs of their own on the node itself (agent.allocate.node_local)."""


MOST_BYTES: Final = 16 << 20
"""A reader takes no larger snapshot. 4,000 pods with as many containers fit: the agent bounds what
each adds (`allocate.named`)."""


class SnapshotError(ValueError):
    """A snapshot text that can't be read; the message names the place."""


class Pool(msgspec.Struct, frozen=True):
    """The shared CPUs of one NUMA node, in the shape of Koordinator's pool annotations (which leave
    out an empty cpuset)."""

    socket: int
    node: int
    cpuset: str = ""

    @property
    def cpus(self) -> CpuSet:
        return CpuSet.parse(self.cpuset)


class Owner(msgspec.Struct, frozen=True):
    """A pod and the CPUs that are its own, none if none of them runs now; `offline`: those of its
    claim that do not run now, which are kept for it. `kubelet`: the CPUs are those of a static
    kubelet's checkpoint."""

    uid: str
    title: str
    qos: QoS
    cpuset: str
    offline: str = ""
    kubelet: bool = False

    @property
    def cpus(self) -> CpuSet:
        return CpuSet.parse(self.cpuset)

    @property
    def claimed(self) -> CpuSet:
        """With those that do not run now."""
        return self.cpus | CpuSet.parse(self.offline)


class LocalOwner(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container and the CPUs that a node-local policy gave it, none if it had none left;
    `original`: those of them that it had before it was resized. One that has ended keeps them for
    its pod."""

    uid: str
    name: str
    cpuset: str
    original: str = ""


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """The agent's decisions at one moment.

    `looked_at` (CLOCK_MONOTONIC, nanoseconds) is when the agent began to list the runtime: every
    container whose creation was answered before is in `containers` or gone.
    """

    generation: int
    looked_at: int
    boot_id: str
    kubelet_static: bool
    ls_pools: tuple[Pool, ...]
    be_pools: tuple[Pool, ...]
    owners: tuple[Owner, ...]
    pods: dict[str, PodWanted]
    containers: dict[str, Wanted]
    """By container id."""
    system: str = ""
    """The CPUs of SYSTEM pods; empty: they are on the LS pool."""
    excluded: tuple[str, ...] = ()
    """Patterns of what is left alone (see exclusion)."""
    cpu_policy: CpuPolicy = "none"
    local_owners: tuple[LocalOwner, ...] = ()
    """Their pods are in `owners` too."""
    devices: VisibleDevices | None = None
    """None: the agent does not decide about device visibility."""


def pool_cpus(pools: tuple[Pool, ...], nodes: tuple[int, ...] = ()) -> CpuSet:
    """All CPUs of the pools, or of those on the given NUMA nodes."""
    return union(pool.cpus for pool in pools if not nodes or pool.node in nodes)


def encode(snapshot: Snapshot) -> bytes:
    """JSON, one line."""
    return msgspec.json.encode(snapshot, enc_hook=str) + b"\n"


def _cpuset(kind: type, value: object) -> CpuSet:
    if not isinstance(value, str):
        raise ValueError(f"expected a list of numbers as text, got {value!r:.40}")
    return CpuSet.parse(value)


_decoder = msgspec.json.Decoder(Snapshot, dec_hook=_cpuset)


def decode(text: bytes) -> Snapshot:
    """Raises SnapshotError."""
    try:
        return bounds.decode(_decoder, text)
    except JsonError as error:
        raise SnapshotError(f"snapshot: {error}") from None
