"""What NVML knows of GPUs beside their Devices: other names, and links between them."""

from __future__ import annotations

import msgspec


class Instance(msgspec.Struct, frozen=True):
    """A MIG instance. `index`: NVML's number of it on its card."""

    uuid: str
    index: int | None = None


class CardNames(msgspec.Struct, frozen=True):
    """`index`: NVML's number of the card, which is not its minor."""

    uuid: str
    index: int | None = None
    instances: tuple[Instance, ...] = ()


class Links(msgspec.Struct, frozen=True):
    """`bytes_per_second[i][j]`: one direction between the cards with minors `minors[i]` and
    `minors[j]`, by links made for it (NVLink, with a switch or without); 0 where only PCIe is.
    """

    minors: tuple[int, ...]
    bytes_per_second: tuple[tuple[int, ...], ...]
