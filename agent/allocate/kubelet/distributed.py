"""CPUs spread evenly over NUMA nodes, over as few as hold the request (peers.md §3.4)."""

from __future__ import annotations

from agent.allocate.kubelet import order
from agent.allocate.kubelet.balance import shares
from agent.allocate.kubelet.packed import NotEnoughCpusError, take_packed
from agent.allocate.layout import Layout


def take_distributed(
    layout: Layout, free: int, count: int, *, group: int = 1, spread: bool = False
) -> int:
    """Exactly `count` of the free CPUs, handed out in groups of `group`; packed where the count is
    no multiple of it or no spread is possible. `spread`: as in `take_packed`, inside each node.
    Raises NotEnoughCpusError."""
    available = free.bit_count()
    if count > available:
        raise NotEnoughCpusError(count, available)
    if not count or count % group:
        return take_packed(layout, free, count, spread=spread)
    nodes = order.nodes(layout, free)
    held = [(node & free).bit_count() for node in nodes]
    groups = count // group
    per_node = _up(_up(layout.cpus.bit_count(), group), len(layout.nodes))
    for size in range(_up(groups, per_node), min(groups, len(nodes)) + 1):
        given = shares(held, count, group, size)
        if given is not None:
            return _taken(layout, free, nodes, given, (count // size // group, group), spread)
    return take_packed(layout, free, count, spread=spread)


def _taken(
    layout: Layout,
    free: int,
    nodes: list[int],
    given: list[int],
    portions: tuple[int, int],
    spread: bool,
) -> int:
    """A node gives its base at once, what it was dealt group by group: the CPUs are others than
    those of one take. `portions`: groups of the base, CPUs of a group."""
    base, group = portions
    taken = 0
    for node, cpus in zip(nodes, given, strict=True):
        rest = node & free
        missing = cpus
        portion = base * group
        while missing:
            if portion:
                part = take_packed(layout, rest, portion, spread=spread)
                rest ^= part
                taken |= part
                missing -= portion
            portion = group
    return taken


def _up(count: int, parts: int) -> int:
    return -(-count // parts)
