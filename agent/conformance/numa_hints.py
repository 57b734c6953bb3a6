"""Hints as the vectors of both merges write them: masks as lists of NUMA ids."""

from __future__ import annotations

from typing import Any

from agent.allocate.bits import members, of_nodes
from agent.allocate.numa.hint import Provider, TopologyHint
from agent.model.cpuset import MAX_ID


def providers(written: list[Any]) -> list[Provider]:
    """An object a provider, null for none; resource -> null, [] or hints."""
    return [
        {
            resource: None if hints is None else [_hint(hint) for hint in hints]
            for resource, hints in (provider or {}).items()
        }
        for provider in written
    ]


def ids(mask: int | None) -> list[int] | None:
    """A mask as its ids, null for no restriction."""
    return None if mask is None else list(members(mask))


def _hint(hint: dict[str, Any]) -> TopologyHint:
    mask = hint["mask"]
    if mask and max(mask) > MAX_ID:
        raise ValueError(f"mask: NUMA node {max(mask)} is beyond {MAX_ID}")
    return TopologyHint(
        None if mask is None else of_nodes(mask),
        preferred=hint["preferred"],
        score=hint.get("score", 0),
        unsatisfied=hint.get("unsatisfied", False),
    )
