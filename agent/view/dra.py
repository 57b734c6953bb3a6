"""What the DRA driver of a node offers and has given, and to whom it gave nothing and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from agent.allocate.dra.groups import CpuGroup
from agent.allocate.dra.refusals import UnpreparedClaim
from agent.allocate.dra.requests import LowRequest
from agent.host import files
from agent.model import bounds
from agent.model.dra.claim_devices import ClaimStatus
from agent.model.dra.prepared_claim import PreparedClaim
from agent.model.pod.apiobjects import ApiPod
from agent.view.format import printable, printable_json

SCHEMA_VERSION: Final = 1
"""The version of the JSON output."""
_MAX_BYTES: Final = 16 << 20


class ShownCpuDevice(msgspec.Struct, frozen=True):
    """A device that the node has for claims."""

    name: str
    numa_node: int
    cpus: str
    free: str
    """Those that no claim has."""


class ShownClaimRequest(msgspec.Struct, frozen=True):
    """What one request of a claim has."""

    request: str
    device: str
    cpus: str
    chosen_outside: bool = False
    """Whether an allocator outside of the node has chosen the CPUs."""


class ShownClaim(msgspec.Struct, frozen=True):
    """A claim for which the kubelet asked."""

    title: str
    pods: tuple[str, ...] = ()
    """The titles of the pods that use it, as far as the agent knows them."""
    requests: tuple[ShownClaimRequest, ...] = ()
    refused: str = ""
    """Why it has no CPUs, "" if it has some."""


class ShownDra(msgspec.Struct, frozen=True):
    """What the agent tells people."""

    registration: str = ""
    """Why the kubelet does not know the driver, "" if it does."""
    problem: str = ""
    """Why the node offers nothing, or can't publish it, "" if it does."""
    devices: tuple[ShownCpuDevice, ...] = ()
    claims: tuple[ShownClaim, ...] = ()
    """Sorted by title."""
    low: Mapping[str, str] = {}
    """By title, a sentence about a pod that requests less CPU than its claims have."""
    schema_version: int = SCHEMA_VERSION


def shown(
    groups: Iterable[CpuGroup],
    prepared: Iterable[PreparedClaim],
    refused: Iterable[UnpreparedClaim],
    pods: Iterable[ApiPod],
    low: Iterable[LowRequest],
    *,
    registration: str,
    problem: str,
) -> ShownDra:
    """`pods`: those of the API server that use claims."""
    uses: dict[tuple[str, str], set[str]] = {}
    for pod in pods:
        for use in pod.claims:
            uses.setdefault((pod.namespace, use.claim), set()).add(pod.title)
    claims = [
        ShownClaim(
            claim.title,
            tuple(sorted(uses.get((claim.namespace, claim.name), ()))),
            tuple(
                ShownClaimRequest(group.request, group.device, group.cpus, group.named)
                for group in claim.groups
            ),
        )
        for claim in prepared
    ]
    claims += [
        ShownClaim(
            f"{claim.namespace}/{claim.name}",
            tuple(sorted(uses.get((claim.namespace, claim.name), ()))),
            refused=claim.reason,
        )
        for claim in refused
    ]
    return ShownDra(
        registration,
        problem,
        tuple(
            ShownCpuDevice(group.name, group.node, str(group.cpus), str(group.free))
            for group in groups
        ),
        tuple(sorted(claims, key=lambda claim: claim.title)),
        {below.pod.title: below.text for below in low},
    )


_decoder: Final = msgspec.json.Decoder(ShownDra)


def read(path: str) -> ShownDra:
    """What the agent wrote last. Raises OSError and JsonError."""
    return bounds.decode(_decoder, files.read(path, _MAX_BYTES))


def as_text(dra: ShownDra) -> str:
    """Devices in order, then claims."""
    lines = ["Devices for ResourceClaims, in the order in which a scheduler takes them:"]
    if dra.registration:
        lines.append(f"  no claim is prepared: {dra.registration}")
    if dra.problem:
        lines.append(f"  nothing is offered: {dra.problem}")
    lines += [
        f"  {device.name}: CPUs {device.cpus or 'none'} of NUMA node {device.numa_node}, of which "
        f"{device.free or 'none'} are free"
        for device in dra.devices
    ]
    lines.append("Claims:" if dra.claims else "No claim has CPUs.")
    for claim in dra.claims:
        lines += [f"  {sentence}" for sentence in _sentences(claim)]
    lines += [f"  pod {title}: {text}" for title, text in dra.low.items()]
    return "\n".join(map(printable, lines)) + "\n"


def as_json(dra: ShownDra) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(dra)).decode()) + "\n"


def of_pod(dra: ShownDra, title: str) -> tuple[str, ...]:
    """Sentences about the claims of the pod with this title."""
    sentences = [
        sentence for claim in dra.claims if title in claim.pods for sentence in _sentences(claim)
    ]
    if low := dra.low.get(title):
        sentences.append(low)
    return tuple(sentences)


def of_status(claim: ClaimStatus) -> Iterator[str]:
    """Sentences about a claim as the API server has it; none if it has no device of this driver."""
    if not claim.allocated:
        yield f"claim {claim.title} is not allocated yet"
    for device in claim.devices:
        where = f"claim {claim.title}: device {device.device} of node {device.pool}"
        since = f" since {device.since}" if device.since else ""
        if device.admin:
            yield f"{where}, which it only looks at"
        elif not device.cpus:
            yield f"{where}, which the node has not prepared yet"
        elif device.trouble:
            yield f"{where}, CPUs {device.cpus}; {device.trouble}{since}"
        else:
            yield f"{where}, CPUs {device.cpus}, ready{since}"


def _sentences(claim: ShownClaim) -> Iterator[str]:
    users = f" (pod {', '.join(claim.pods)})" if claim.pods else " (no pod is known)"
    if claim.refused:
        yield f"claim {claim.title}{users} gets no CPUs: {claim.refused}"
    for request in claim.requests:
        where = f"claim {claim.title}{users}, request {request.request}: device {request.device}"
        if not request.cpus:
            yield f"{where}, which it only looks at"
            continue
        by = "an allocator outside of the node" if request.chosen_outside else "the node"
        yield f"{where}, CPUs {request.cpus}, which {by} chose"
