"""CPUs evenly over NUMA nodes: how many each gives.

Over all nodes that the request names; else over the fewest that can hold it, of these choices the
most even one, then one within a socket, then the one with most room, then the lowest ids.

Shares are as equal as room allows: each node gives the same, those with less room all they have.
What does not divide goes to the nodes with most room, the lower id first. For FullPCPUs the unit is
a core while the nodes have enough whole cores; CPUs that make no core go to the smallest share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent.allocate.layout import Area, Layout


class _Choice(NamedTuple):
    """Compared as a whole: the best is the least."""

    difference: int
    sockets: int
    missing_room: int
    ids: tuple[int, ...]
    shares: tuple[int, ...]


def shares(
    layout: Layout, free: int, need: int, whole_cores: bool, all_nodes: bool
) -> dict[int, int]:
    """CPUs that each NUMA node gives, by node id, none 0; `free` has at least `need`.

    `all_nodes`: over every node that has free CPUs, instead of the fewest.
    """
    if not need:
        return {}
    unit = 1
    if whole_cores:
        whole = layout.expand(layout.whole(free))
        units = sum((whole & node.cpus).bit_count() // layout.threads for node in layout.nodes)
        if units * layout.threads >= need:
            free, unit = whole, layout.threads
    rooms = []
    for node in layout.nodes:
        room = (free & node.cpus).bit_count() // unit * unit
        if room:
            rooms.append((node, room))
    rooms.sort(key=lambda room: (-room[1], room[0].id))
    if all_nodes:
        choices = [rooms]
    else:
        size = _fewest(rooms, need)
        choices = [rooms[:size]]
        for socket in {node.around for node, _ in rooms}:
            inside = [room for room in rooms if room[0].around == socket][:size]
            if sum(count for _, count in inside) >= need:
                choices.append(inside)
    best = min(_choice(rooms, need, unit) for rooms in choices)
    return {id_: share for id_, share in zip(best.ids, best.shares, strict=True) if share}


def even(rooms: Sequence[int], need: int) -> list[int]:
    """`need` units, shared as equally as the rooms allow, which have enough; what does not divide
    goes to the largest rooms, the first of equal ones."""
    given = [0] * len(rooms)
    while need:
        open_ = [index for index, room in enumerate(rooms) if given[index] < room]
        each = min(need // len(open_), min(rooms[index] - given[index] for index in open_))
        if not each:
            open_ = sorted(open_, key=lambda index: -rooms[index])[:need]
            each = 1
        for index in open_:
            given[index] += each
        need -= each * len(open_)
    return given


def _fewest(rooms: Iterable[tuple[Area, int]], need: int) -> int:
    for number, (_, count) in enumerate(rooms, start=1):
        need -= count
        if need <= 0:
            return number
    return 0


def _choice(rooms: Sequence[tuple[Area, int]], need: int, unit: int) -> _Choice:
    units, extra = divmod(need, unit)
    given = [share * unit for share in even([count // unit for _, count in rooms], units)]
    if extra:
        _, index = min(
            (given[index], index)
            for index, (_, count) in enumerate(rooms)
            if count - given[index] >= extra
        )
        given[index] += extra
    in_order = sorted((node.id, share) for (node, _), share in zip(rooms, given, strict=True))
    return _Choice(
        difference=max(given) - min(given),
        sockets=len({node.around for node, _ in rooms}),
        missing_room=-sum(count for _, count in rooms),
        ids=tuple(id_ for id_, _ in in_order),
        shares=tuple(share for _, share in in_order),
    )
