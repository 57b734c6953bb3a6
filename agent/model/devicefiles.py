"""By which names and files a container reaches each device of a node."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.model.visible import DeviceNode, VisibleGpu


class CardFiles(msgspec.Struct, frozen=True):
    """A GPU. `divided`: MIG is on, so that only its `instances` can be had; the nodes of one are
    its card's and its own."""

    gpu: VisibleGpu
    minor: int | None = None
    divided: bool = False
    instances: tuple[VisibleGpu, ...] = ()


class OtherFiles(msgspec.Struct, frozen=True):
    """A device of another type, by its uuid (an RDMA device's or FPGA's PCI address) and minor.
    `functions`: the nodes of its virtual functions, by PCI address."""

    type: str
    uuid: str
    minor: int
    nodes: tuple[DeviceNode, ...] = ()
    functions: dict[str, tuple[DeviceNode, ...]] = {}


class DeviceFiles(msgspec.Struct, frozen=True):
    """All devices of a node. `cards` None: there are some, and their driver has not listed them
    yet. `common`: by type, the nodes that every user needs in addition to those of its device
    (/dev/infiniband/rdma_cm)."""

    cards: tuple[CardFiles, ...] | None = ()
    others: tuple[OtherFiles, ...] = ()
    common: dict[str, tuple[DeviceNode, ...]] = {}


NO_FILES: Final = DeviceFiles()
