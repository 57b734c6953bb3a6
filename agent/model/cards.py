"""GPUs as their driver tells of them, and what links them."""

from __future__ import annotations

import msgspec


class Instance(msgspec.Struct, frozen=True):
    """A MIG instance. `index`: NVML's number of it on its card."""

    uuid: str
    index: int | None = None


class Card(msgspec.Struct, frozen=True):
    """A GPU. `minor`: the number of its device file, `index`: NVML's number of it, which may be
    another; `address` of its PCI function, in any way of writing; `module`: its slot.

    `divided`: MIG is on, so that it can't be had as a whole, with instances or without.
    `ill`: why it can't be used, as a reason in one word and a sentence; None of a healthy one.
    """

    uuid: str
    minor: int | None
    address: str
    memory_bytes: int
    index: int | None = None
    module: int | None = None
    divided: bool = False
    instances: tuple[Instance, ...] = ()
    ill: tuple[str, str] | None = None
    labels: dict[str, str] = {}


class Links(msgspec.Struct, frozen=True):
    """`bytes_per_second[i][j]`: one direction between the cards with minors `minors[i]` and
    `minors[j]`, by links made for it (NVLink, with a switch or without); 0 where only PCIe is.
    """

    minors: tuple[int, ...]
    bytes_per_second: tuple[tuple[int, ...], ...]
