"""How NVIDIA's runtime chooses GPUs: the names that the container toolkit reads from a container,
and the devices that libnvidia-container selects by them (tests/data/gpunames)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from posixpath import normpath

import msgspec

from agent.model.devices.visibility import NodeDevice, NodeVisibility

_LIBC = ctypes.CDLL(None)
_LIBC.strtoumax.restype = ctypes.c_uint64
_UINTMAX = (1 << 64) - 1
_ROOT = "/var/run/nvidia-container-devices"


class Instance(msgspec.Struct, frozen=True):
    uuid: str


class Card(msgspec.Struct, frozen=True):
    uuid: str
    bus: str
    instances: tuple[Instance, ...] = ()


CARDS = (
    Card("GPU-3f0a1b2c-0d1e-4f20-8a31-425364758697", "00000000:3B:00.0"),
    Card("GPU-7b8c9d0e-1f2a-4b3c-9d4e-5f60718293a4", "00000000:5E:00.0"),
    Card(
        "GPU-c1d2e3f4-a5b6-4c7d-8e9f-0a1b2c3d4e5f",
        "00010000:AF:00.0",
        (
            Instance("MIG-11223344-5566-5778-899a-abbccddeeff0"),
            Instance("MIG-99887766-5544-5332-a110-0ffeeddccbba"),
        ),
    ),
)
"""The machine of the tables: two undivided cards and one with MIG instances."""


def node(*held: str, holder: str = "owner") -> NodeVisibility:
    """The machine as the agent describes it; `held`: the devices allocated to the holder."""
    devices = []
    for index, card in enumerate(CARDS):
        owners = (holder,) if card.uuid in held else ()
        devices.append(
            NodeDevice(card.uuid, str(index), nodes=(f"/dev/nvidia{index}",), holders=owners)
        )
        for part, instance in enumerate(card.instances):
            owners = (holder,) if instance.uuid in held else ()
            devices.append(
                NodeDevice(instance.uuid, f"{index}:{part}", card.uuid, (), owners),
            )
    return NodeVisibility(tuple(devices))


def selected(devices: str) -> frozenset[str] | None:
    """The UUIDs that select_devices selects by a list of names, without the card of an instance;
    None if it fails."""
    found: set[str] = set()
    for name in devices.split(","):
        if not name:
            continue
        if name.lower() == "all":
            found |= {card.uuid for card in CARDS}
            return frozenset(found | {part.uuid for card in CARDS for part in card.instances})
        uuid = _card(name) or _instance(name)
        if uuid is None:
            return None
        found.add(uuid)
    return frozenset(found)


def _bytes(name: str) -> bytes:
    """The argument of a program: it ends at a zero byte."""
    return name.encode(errors="surrogateescape").partition(b"\0")[0]


def _card(name: str) -> str | None:
    for card in CARDS:
        if card.uuid.lower() == name.lower():
            return card.uuid
    domain, bus, device = (ctypes.c_int() for _ in range(3))
    text = _bytes(name)
    fields = map(ctypes.byref, (domain, bus, device))
    if _LIBC.sscanf(text, b"%x:%02x:%02x.0", *fields) == len("xxx"):
        domain_bits = domain.value & 0xFFFFFFFF
        address = (
            f"{domain_bits:08x}:{bus.value & 0xFFFFFFFF:02x}:{device.value & 0xFFFFFFFF:02x}.0"
        )
        for card in CARDS:
            if card.bus.lower().startswith(address[:16]):
                return card.uuid
    end = ctypes.c_char_p()
    number = _LIBC.strtoumax(text, ctypes.byref(end), 10)
    if end.value == b"" and number < _UINTMAX and number < len(CARDS):
        return CARDS[number].uuid
    return None


def _instance(name: str) -> str | None:
    parts = [part for card in CARDS for part in card.instances]
    for part in parts:
        if part.uuid.lower() == name.lower():
            return part.uuid
    card, instance = ctypes.c_ulong(), ctypes.c_ulong()
    both = ctypes.byref(card), ctypes.byref(instance)
    if _LIBC.sscanf(_bytes(name), b"%lu:%lu", *both) == len(both) and card.value < len(CARDS):
        of_card = CARDS[card.value].instances
        if instance.value < len(of_card):
            return of_card[instance.value].uuid
    return None


_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""The characters that Go's strings.TrimSpace removes."""


def by_environment(value: str) -> list[str]:
    """As devicesFromEnvvars and NewVisibleDevices."""
    names = [name for each in value.split(",") if (name := each.strip(_SPACES))]
    if not names or "void" in names:
        return []
    for name in names:
        if name in ("all", "none"):
            return ["all"] if name == "all" else []
    return names


def by_mounts(paths: Iterable[str]) -> list[str]:
    """As requestsFromMounts and visibleDevicesFromMounts, for mounts of /dev/null."""
    names = []
    for path in paths:
        clean = normpath(path).replace("//", "/", 1)
        below = clean.removeprefix(_ROOT).strip("/") if clean.startswith(_ROOT) else ""
        if below and not below.startswith(("imex/", "cdi/")):
            names.append(below)
    return names


def visible(environment: Sequence[str] = (), mounts: Iterable[str] = ()) -> frozenset[str] | None:
    """The devices of a container in mode `legacy`, which prefers mounts to the environment."""
    names = by_mounts(mounts) or (by_environment(environment[-1]) if environment else [])
    return selected(",".join(names))
