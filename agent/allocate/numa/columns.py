"""The hints of all providers as columns, one a resource: a merge takes one hint from each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from agent.allocate.bits import members, of_nodes
from agent.allocate.numa.hint import MergeCause, Pick, Provider, TopologyHint

_ANY: Final = (TopologyHint(None, True),)
_LACKING: Final = (TopologyHint(None, False, 0, True),)


class Column:
    """One resource's hints in their order, or those of them that a policy keeps.

    `masks`: as hinted, no preference as the machine's full mask; `named`: None kept.
    """

    __slots__ = ("hints", "kept", "masks", "named", "provider", "resource")

    def __init__(
        self,
        provider: int,
        resource: str | None,
        hints: Sequence[TopologyHint],
        full: int,
        kept: Sequence[int] | None = None,
    ) -> None:
        self.provider = provider
        self.resource = resource
        self.hints = hints
        self.kept = kept
        self.named = [hint.mask for hint in hints]
        self.masks = [full if mask is None else mask for mask in self.named]

    @property
    def lacking(self) -> bool:
        """Nothing satisfies this resource, or a policy kept no hint of it."""
        return self.hints is _LACKING or not self.hints

    def keep(self, kept: Sequence[int], full: int) -> Column:
        """Only the hints at these places, itself if those are all."""
        if len(kept) == len(self.hints):
            return self
        places = kept if self.kept is None else [self.kept[index] for index in kept]
        hints = [self.hints[index] for index in kept]
        return Column(self.provider, self.resource, hints, full, places)

    def pick(self, index: int) -> Pick:
        """The hint at `index`, by its place in what the provider gave."""
        if self.hints is _ANY or self.lacking:
            return Pick(self.provider, self.resource, None)
        return Pick(self.provider, self.resource, index if self.kept is None else self.kept[index])


def columns(providers: Iterable[Provider], full: int) -> list[Column]:
    """Providers and resources in their order. Raises ValueError, naming provider and resource, for
    a mask with nodes that the machine lacks and for a negative score."""
    made = []
    for number, provider in enumerate(providers):
        if not provider:
            made.append(Column(number, None, _ANY, full))
        for resource, hints in provider.items():
            if hints is None:
                made.append(Column(number, resource, _ANY, full))
            elif not hints:
                made.append(Column(number, resource, _LACKING, full))
            else:
                made.append(_checked(Column(number, resource, hints, full), full))
    return made


def full_mask(nodes: Iterable[int]) -> int:
    """The mask of a machine's NUMA nodes. Raises ValueError where there are none."""
    full = of_nodes(nodes)
    if not full:
        raise ValueError("a machine has at least one NUMA node")
    return full


def single_node_only(column: Column, full: int) -> Column:
    """Preferred hints of one NUMA node or of no preference: SingleNUMANode takes no others."""
    kept = [
        index
        for index, (hint, mask) in enumerate(zip(column.hints, column.named, strict=True))
        if hint.preferred and (mask is None or mask.bit_count() == 1)
    ]
    return column.keep(kept, full)


def lacking(columns: Iterable[Column]) -> tuple[Pick, ...]:
    """The resources that nothing satisfies."""
    return tuple(column.pick(0) for column in columns if column.lacking)


def aligned(columns: Sequence[Column], full: int) -> set[int]:
    """The masks that every column prefers: one preferred hint of each, all of the same mask; no
    preference fits every mask. Without any mask it is the full one."""
    common: set[int] | None = None
    offered: set[int] = set()
    for column in columns:
        preferred = {hint.mask for hint in column.hints if hint.preferred}
        indifferent = None in preferred
        masks = {mask for mask in preferred if mask}
        if indifferent:
            offered |= masks
        elif common is None:
            common = masks
        else:
            common &= masks
        if common is not None and not common:
            return common
    return offered | {full} if common is None else common


def causes(
    columns: Sequence[Column], place: Sequence[int], kept_out: bool
) -> tuple[MergeCause, ...]:
    """Why the combination at this place is not preferred; `kept_out`: by exclusivity."""
    found = []
    if any(column.lacking for column in columns):
        found.append(MergeCause.RESOURCE_LACKING)
    hints = [
        column.hints[index]
        for column, index in zip(columns, place, strict=True)
        if not column.lacking
    ]
    if not all(hint.preferred for hint in hints):
        found.append(MergeCause.HINT_NOT_PREFERRED)
    if len({hint.mask for hint in hints} - {None}) > 1:
        found.append(MergeCause.MASKS_DIFFER)
    if kept_out:
        found.append(MergeCause.NODE_EXCLUSIVE)
    return tuple(found)


def no_combination(columns: Iterable[Column], single: bool) -> tuple[MergeCause, ...]:
    """Why no combination has a node; `single`: only hints of one node were kept."""
    if not any(column.lacking for column in columns):
        return (MergeCause.NOTHING_IN_COMMON,)
    return (MergeCause.NOT_ON_ONE_NODE if single else MergeCause.RESOURCE_LACKING,)


def _checked(column: Column, full: int) -> Column:
    union = 0
    for mask in column.masks:
        union |= mask
    if union & ~full:
        stray = ", ".join(str(node) for node in members(union & ~full))
        raise ValueError(
            f"hints of provider {column.provider}, {column.resource}: "
            f"the machine has no NUMA node {stray}"
        )
    if min(hint.score for hint in column.hints) < 0:
        raise ValueError(
            f"hints of provider {column.provider}, {column.resource}: a score is negative"
        )
    return column
