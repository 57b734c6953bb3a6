"""Prepared ResourceClaims: the CPUs that the node has chosen for them. The agent keeps them in a
file, because the kubelet does not repeat the preparation of pods that run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSet, CpuSetError, union
from agent.model.cpu.policies import ExclusivePolicy

MAX_BYTES: Final = 16 << 20
"""A reader accepts no larger file."""


class PreparedGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """The CPUs of one request of a claim."""

    request: str
    pool: str
    device: str
    cpus: str = ""
    """As a list; "" for admin access."""
    share: str | None = None
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    shared: bool = False
    """Whether its containers run on the shared pool too."""
    bind_memory: bool = False
    """Whether the memory of its containers comes from the NUMA nodes of the CPUs alone."""
    amounts: Mapping[str, int] = {}
    """The memory and huge pages that the claim has, in bytes."""
    named: bool = False
    """Whether an allocator outside of the node has chosen the CPUs."""

    @property
    def cpu_set(self) -> CpuSet:
        return CpuSet.parse(self.cpus)

    @property
    def base_request(self) -> str:
        """The request without its subrequest."""
        return self.request.partition("/")[0]


class ClaimContainer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container that uses a claim."""

    pod_uid: str
    name: str
    request: str = ""
    """The request of the claim that it uses, "" for all."""


class PreparedClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim with the CPUs that it keeps until the kubelet unprepares it."""

    uid: str
    namespace: str
    name: str
    groups: tuple[PreparedGroup, ...] = ()
    pod_claim: str = ""
    """The name in the pod, if the claim was made from a template for one."""
    containers: tuple[ClaimContainer, ...] = ()
    """The containers that use it, as far as they are known."""
    prepared_at: int = 0
    """Seconds since 1970."""

    @property
    def title(self) -> str:
        """The name in logs and errors."""
        return f"{self.namespace}/{self.name}"

    @property
    def cpus(self) -> CpuSet:
        return union(group.cpu_set for group in self.groups)

    def of_request(self, request: str) -> tuple[PreparedGroup, ...]:
        """Those of one request of the claim; all for ""."""
        return tuple(
            group for group in self.groups if request in ("", group.request, group.base_request)
        )

    @property
    def requests(self) -> Mapping[str, tuple[PreparedGroup, ...]]:
        """By request, without its subrequest."""
        names = dict.fromkeys(group.base_request for group in self.groups)
        return {name: self.of_request(name) for name in names}


class _PreparedClaims(msgspec.Struct, frozen=True):
    claims: tuple[msgspec.Raw, ...]


_decoder: Final = msgspec.json.Decoder(_PreparedClaims)
_of_claim: Final = msgspec.json.Decoder(PreparedClaim)


def encode(claims: Iterable[PreparedClaim]) -> bytes:
    """JSON, one line, sorted by uid."""
    in_order = sorted(claims, key=lambda claim: claim.uid)
    return msgspec.json.encode({"claims": in_order}) + b"\n"


def decode(text: bytes) -> tuple[tuple[PreparedClaim, ...], tuple[str, ...]]:
    """The claims, and a sentence about each one that can't be read. Raises JsonError."""
    claims, faults = [], []
    for index, raw in enumerate(bounds.decode(_decoder, text).claims):
        try:
            claim = bounds.decode(_of_claim, bytes(raw))
            for group in claim.groups:
                CpuSet.parse(group.cpus)
        except (JsonError, CpuSetError) as error:
            faults.append(f"claims[{index}] is left out: {error}")
        else:
            claims.append(claim)
    return tuple(claims), tuple(faults)
