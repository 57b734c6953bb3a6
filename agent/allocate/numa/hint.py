"""NUMA hints of the resources that a pod requests, and the result of a merge.

A NUMA mask is an int whose bits are NUMA node ids; the mask `None` means any node.

`resource_hints` makes the hints of CPU, memory and all other resources that the NUMA nodes of a
machine report. If a trial allocation fits on a set of nodes, the set is a hint of each requested
resource that every node of the set has free. So a hint of memory may include a node without free
CPUs, but a hint of CPU may not.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from agent.allocate.steps import UNCOUNTED, Steps
from agent.model.cpu.cpuset import members
from agent.model.cpu.policies import NumaPolicy


class TopologyHint(msgspec.Struct, frozen=True):
    """A set of NUMA nodes that a resource could come from."""

    mask: int | None
    """None for no preference."""
    preferred: bool
    score: int = 0
    """0 or more."""
    unsatisfied: bool = False
    """No set has enough of the resource; this hint takes the place of the missing ones."""


Provider: TypeAlias = Mapping[str, Sequence[TopologyHint] | None]
"""Hints by resource: `None` has no preference, an empty sequence can't be satisfied."""


class MergeCause(enum.StrEnum):
    """Why a merged mask is not preferred; all causes that apply are listed, in this order."""

    RESOURCE_LACKING = "resource-lacking"
    NOT_ON_ONE_NODE = "not-on-one-node"
    NOTHING_IN_COMMON = "nothing-in-common"
    HINT_NOT_PREFERRED = "hint-not-preferred"
    MASKS_DIFFER = "masks-differ"
    NODE_EXCLUSIVE = "node-exclusive"


class Pick(msgspec.Struct, frozen=True):
    """The hint of a resource that a merge took."""

    provider: int
    resource: str | None
    """The resource is None if the provider has no hints."""
    index: int | None
    """The index in the provider's list, None if the resource has no list, or an empty one."""


class Merged(msgspec.Struct, frozen=True):
    """The result of a merge and its causes."""

    mask: int | None
    """None for no restriction."""
    preferred: bool
    admit: bool
    score: int = 0
    unsatisfied: bool = False
    combined: int | None = None
    """The winner's mask before the policy replaced it, if it did; None without a winner."""
    causes: tuple[MergeCause, ...] = ()
    picks: tuple[Pick, ...] = ()
    """The hints of the winner, one per resource."""
    lacking: tuple[Pick, ...] = ()
    """The resources that no hint satisfies, or under SingleNUMANode no preferred hint of one
    node."""


class NodeStatus(enum.StrEnum):
    """Which pods own CPUs of a NUMA node: no pod, only pods inside this node, or also a pod that
    owns CPUs of other nodes."""

    IDLE = "idle"
    SINGLE = "single"
    SHARED = "shared"


Amounts: TypeAlias = Mapping[int, Mapping[str, int]]
"""By NUMA id, then by resource, in that resource's own unit (cpu in milli, memory in bytes)."""


def resource_hints(
    request: Mapping[str, int],
    available: Amounts,
    total: Amounts,
    policy: NumaPolicy,
    score: Callable[[int], int],
    fits: Callable[[int], bool],
    *,
    narrowest: bool = False,
    widest: int | None = None,
    steps: Steps = UNCOUNTED,
) -> dict[str, tuple[TopologyHint, ...]]:
    """The hints of each requested resource that a node of `total` reports; none if nothing fits.
    The masks of the fewest nodes are preferred; under Restricted all masks are. All masks are tried
    if at most ten nodes have some of the resource left, else those of `subsets`.

    `request`: in the unit of `available` (amplified or not).
    `fits`: tries the whole request on a mask; it is called only if the sums of the mask are enough.
    `score`: the score of a mask that fits.
    `narrowest`: only masks with at most the fewest nodes that all resources prefer together. A
        merge of only these hints has the same result, except under exclusivity.
    `widest`: only masks with at most this number of nodes.
    `steps`: without those of `fits` and `score`."""
    wanted = {
        resource: amount
        for resource, amount in request.items()
        if amount > 0 and any(resource in held for held in total.values())
    }
    free = {resource: _free(available, resource) for resource in wanted}
    holders = {resource: sum(node for node, _ in held) for resource, held in free.items()}
    by_resource: dict[str, list[TopologyHint]] = {resource: [] for resource in wanted}
    fewest = dict.fromkeys(wanted, 0)
    requested = [(needed, free[resource]) for resource, needed in wanted.items()]
    agreed = 0
    amounts = [(needed, _by_node(available, resource)) for resource, needed in wanted.items()]
    of_mask = 3 + len(wanted)
    least = max(map(fewest_nodes, requested), default=1)
    for mask in _candidates(holders.values(), least, steps):
        size = mask.bit_count()
        steps.take(of_mask + size * len(wanted) // 6)
        if (narrowest and agreed and size > agreed) or (widest and size > widest):
            break
        if not _enough(mask, amounts) or not fits(mask):
            continue
        mask_score = score(mask)
        preferring = 0
        hints: dict[bool, TopologyHint] = {}
        for resource, holder in holders.items():
            if mask & ~holder:
                continue
            smallest = fewest[resource] = fewest[resource] or size
            preferred = policy is NumaPolicy.RESTRICTED or size == smallest
            preferring += preferred
            hint = hints.get(preferred)
            if hint is None:
                hint = hints[preferred] = TopologyHint(mask, preferred, mask_score)
            by_resource[resource].append(hint)
        if preferring == len(wanted):
            agreed = agreed or size
    return {resource: tuple(held) for resource, held in by_resource.items()}


def _enough(mask: int, requested: Sequence[tuple[int, Mapping[int, int]]]) -> bool:
    nodes = ids(mask)
    for needed, free in requested:
        for node in nodes:
            needed -= free.get(node, 0)
        if needed > 0:
            return False
    return True


def fewest_nodes(requested: tuple[int, Sequence[tuple[int, int]]]) -> int:
    """The fewest nodes that together have enough of a resource; one more than there are if all
    nodes together have too little.

    `requested`: the amount, and the nodes with their free amounts."""
    missing, free = requested
    count = 1
    for amount in sorted((amount for _, amount in free), reverse=True):
        missing -= amount
        if missing <= 0:
            break
        count += 1
    return count


def _candidates(holders: Iterable[int], least: int, steps: Steps) -> Iterable[int]:
    """The subsets of each set of nodes, in the order of `subsets`."""
    distinct = set(holders)
    if len(distinct) == 1:
        return subsets(members(distinct.pop()), least)
    masks: set[int] = set()
    for holder in distinct:
        found = set(subsets(members(holder), least))
        steps.take(15 * len(found))
        masks |= found
    return sorted(masks, key=lambda mask: (mask.bit_count(), tuple(members(mask))))


def _free(available: Amounts, resource: str) -> list[tuple[int, int]]:
    """The nodes with a free amount, as bits, and their free amounts."""
    amounts = ((1 << node, held.get(resource, 0)) for node, held in available.items())
    return [(node, amount) for node, amount in amounts if amount > 0]


def _by_node(available: Amounts, resource: str) -> dict[int, int]:
    return {node: max(0, held.get(resource, 0)) for node, held in available.items()}


WHOLE: Final = 1023
"""The most masks of small sizes that are tried: all subsets of 10 nodes."""


def of_nodes(nodes: Iterable[int]) -> int:
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


@functools.lru_cache(maxsize=4096)
def ids(mask: int) -> tuple[int, ...]:
    """The NUMA nodes of a mask, ascending."""
    return tuple(members(mask))


def subsets(nodes: Iterable[int], least: int = 1) -> Iterator[int]:
    """Sets of `least` or more of these NUMA nodes as masks, by size, then lexicographically by ids.

    For up to ten nodes, all of them. For more nodes, all sets of the small sizes that together stay
    within WHOLE, and of greater sizes only runs of neighbours (nodes next to each other in the
    order of their ids): at most n²/2 more sets instead of 2ⁿ."""
    ids = sorted(set(nodes))
    tried = 0
    for size in range(1, len(ids) + 1):
        tried += math.comb(len(ids), size)
        if tried <= WHOLE:
            chosen: Iterable[tuple[int, ...]] = itertools.combinations(ids, size)
        else:
            tried = WHOLE
            chosen = (tuple(ids[at : at + size]) for at in range(len(ids) - size + 1))
        if size < least:
            continue
        for each in chosen:
            yield of_nodes(each)
