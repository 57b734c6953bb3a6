"""How much of a batch or mid resource a node offers, and what it was computed from."""

from __future__ import annotations

import msgspec

from agent.usage.batch_mid import OfferedResource
from agent.usage.offered import Offered
from agent.view.format import printable, printable_json

SCHEMA_VERSION = 1
"""The version of the JSON output."""


class ExplainedResource(msgspec.Struct, frozen=True):
    """A resource of a node."""

    resource: OfferedResource
    age_seconds: float
    numa_nodes: dict[int, int]
    """The amounts of NUMA nodes; empty if they have none."""
    schema_version: int = SCHEMA_VERSION


def explained(offered: Offered, name: str, now: float) -> ExplainedResource | None:
    """The resource with this name, as `batch-cpu`; None if it is not offered. `now`: seconds since
    1970."""
    for each in offered.resources:
        if each.name.rpartition("/")[2] == name.rpartition("/")[2]:
            zones = {
                zone: amounts[each.name]
                for zone, amounts in sorted(offered.zones.items())
                if each.name in amounts
            }
            return ExplainedResource(each, max(0.0, now - offered.at), zones)
    return None


def as_text(shown: ExplainedResource) -> str:
    """A line for each term of the sum, and one for what became of it."""
    resource, offer = shown.resource, shown.resource.offer
    unit = "milli-CPU" if resource.name.endswith("cpu") else "bytes"
    head = (
        f"Node's {resource.name}: {resource.amount} {unit}, computed {shown.age_seconds:.0f} s ago"
    )
    rows = [(term.name, term.amount) for term in offer.terms]
    rows.append(("sum, at least 0", max(0, sum(amount for _, amount in rows))))
    if offer.limit is not None:
        rows.append(("at most, by strategy", offer.limit))
    if offer.normalization:
        rows.append(("CPU normalization", offer.normalization))
    if resource.third_party is None:
        rows.append(("offered, in steps", resource.amount))
    else:
        rows.append(("in steps", resource.origin))
        rows.append(("third-party allocations", -resource.third_party))
        rows.append(("offered, at least 0", resource.amount))
    rows += [(f"of that on NUMA node {zone}", amount) for zone, amount in shown.numa_nodes.items()]
    width = max(len(name) for name, _ in rows)
    digits = max(len(str(amount)) for _, amount in rows)
    lines = [head, *(f"  {name:<{width}}  {amount:>{digits}}" for name, amount in rows)]
    return "\n".join(map(printable, lines)) + "\n"


def as_json(shown: ExplainedResource) -> str:
    """The terms and what became of them, as JSON."""
    return printable_json(msgspec.json.encode(shown).decode()) + "\n"
