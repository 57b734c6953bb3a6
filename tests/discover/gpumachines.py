"""Machines with GPUs for the fake driver: cards, links and topology."""

from __future__ import annotations

import dataclasses
import itertools

from tests.discover.fakenvml import GPU, SWITCH, Card, Machine

INTERNAL, SINGLE, MULTIPLE, HOST_BRIDGE, NODE, SYSTEM = 0, 10, 20, 30, 40, 50


def uuid(place: int, family: int = 0xA100) -> str:
    return f"GPU-{family:08x}-0000-4000-8000-{place:012x}"


def bus(number: int, domain: int = 0) -> str:
    return f"{domain:08X}:{number:02X}:00.0"


def a100_hgx() -> Machine:
    """Eight A100 on six NVSwitches, with twelve links per card, two cards per PCIe switch and four
    per socket. The device minors differ from the indices, as on a real machine."""
    buses = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
    minors = (2, 3, 0, 1, 6, 7, 4, 5)
    links = tuple((3, SWITCH, bus(0xC4 + number // 2)) for number in range(12))
    cards = tuple(
        Card(
            uuid(place),
            "NVIDIA A100-SXM4-80GB",
            bus(buses[place]),
            minors[place],
            links=links,
            mig=(0, 0),
            facts={
                "serial": f"132102100000{place}",
                "module": place + 1,
                "capability": "8 0",
                "utilization": "30 10",
                "clock.1": 1410,
                "power": 70123,
                "temperature": 34,
                "energy": 1000 + place,
                "ecc": "0 0",
                "remapped": "0 0 0 0",
                "field.230": 0,
            },
        )
        for place in range(8)
    )
    pairs = {
        (one, two): {
            "ancestor": MULTIPLE if one // 2 == two // 2 else NODE if one // 4 == two // 4 else 50,
            "p2p.0": 0,
            "p2p.1": 0,
            "p2p.2": 0,
        }
        for one, two in itertools.combinations(range(8), 2)
    }
    return Machine(cards, pairs=pairs)


DGX1_LINKS = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""The number of links between the cards of DGX-1 with V100, a hybrid cube mesh."""


def dgx1() -> Machine:
    buses = (0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A)
    peers: list[list[int]] = [[] for _ in buses]
    for (one, two), count in DGX1_LINKS.items():
        peers[one] += [two] * count
        peers[two] += [one] * count
    cards = tuple(
        Card(
            uuid(place, 0x100),
            "Tesla V100-SXM2-16GB",
            bus(buses[place]),
            place,
            memory=(16384, 300, 0),
            links=tuple((2, GPU, bus(buses[other])) for other in peers[place]),
            facts={"ecc": "0 0", "utilization": "0 0", "retired.pending": 0},
        )
        for place in range(8)
    )
    pairs = {
        (one, two): {"ancestor": SINGLE if one // 2 == two // 2 else SYSTEM, "p2p.0": 0}
        for one, two in itertools.combinations(range(8), 2)
    }
    return Machine(cards, driver="450.80.02", pairs=pairs)


def mixed() -> Machine:
    """Cards of two models, one of them in a PCI domain of five digits."""
    return Machine(
        (
            Card(uuid(0), "NVIDIA A100-PCIE-40GB", bus(0x3B), 1, memory=(40960, 500, 0)),
            Card(uuid(1), "Tesla T4", bus(0x01, 0x10000), 0, memory=(15360, 400, 0)),
        ),
        pairs={(0, 1): {"ancestor": SYSTEM, "p2p.0": 5}},
    )


def with_mig() -> Machine:
    """An undivided card, one with two MIG instances, one in MIG mode without instances, and one
    whose MIG mode is pending."""
    instance = {"gi": 1, "ci": 0, "attributes": "3 3 20096", "memory": "20096 10 100"}
    cards = a100_hgx().cards[:4]
    name = "MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3"
    instances = tuple({**instance, "uuid": f"{name}{number}", "gi": number} for number in (1, 2))
    return Machine(
        (
            cards[0],
            dataclasses.replace(cards[1], mig=(1, 1), instances=instances),
            dataclasses.replace(cards[2], mig=(1, 1)),
            dataclasses.replace(cards[3], mig=(0, 1)),
        )
    )


def gb10() -> Machine:
    """DGX Spark: one chip that uses the host's memory, which NVML does not report."""
    card = Card(uuid(0, 0xB10), "NVIDIA GB10", bus(1, 0xF), 0, memory=None)
    return Machine((card,), driver="580.95.05")
