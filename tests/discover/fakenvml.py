"""A fake NVIDIA driver: machines as data, passed to the real binding by nvml/fake.c."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.tools import source

SOURCES = Path(__file__).resolve().parent / "nvml"
SONAME = "libnvidia-ml.so.1"

GPU, SWITCH = 0, 2
"""The kinds of the far end of a link."""

ECC_AND_XID = 0x1 | 0x2 | 0x8
XID = 0x8


@dataclasses.dataclass(frozen=True)
class Card:
    """`memory`: total, reserved and used MiB; None: NOT_SUPPORTED, like every other absent value.
    `links`: version, type and address of the far end, None for a link that is down."""

    uuid: str
    name: str
    bus: str
    minor: int | None
    memory: tuple[int, int, int] | None = (81920, 600, 0)
    links: tuple[tuple[int, int, str] | None, ...] = ()
    mig: tuple[int, int] | None = None
    instances: tuple[Mapping[str, object], ...] = ()
    events: int | None = ECC_AND_XID
    facts: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def lines(self, place: int) -> Iterable[tuple[str, object]]:
        at = f"gpu.{place}"
        for key, value in self.facts.items():
            yield f"{at}.{key}", value
        for key in ("uuid", "name", "bus", "minor", "events"):
            if (value := getattr(self, key)) is not None:
                yield f"{at}.{key}", value
        if self.memory is not None:
            yield f"{at}.memory", " ".join(map(str, self.memory))
        if self.links:
            yield f"{at}.links", len(self.links)
        for number, link in enumerate(self.links):
            if link is not None:
                yield f"{at}.link.{number}", " ".join(map(str, link))
        if self.mig is not None:
            yield f"{at}.mig.mode", " ".join(map(str, self.mig))
            yield f"{at}.mig.most", 7
        for number, instance in enumerate(self.instances):
            for key, value in instance.items():
                yield f"{at}.mig.{number}.{key}", value


@dataclasses.dataclass(frozen=True)
class Machine:
    """`enumerated`: the indices of the cards that the driver lists, in order; None: all. `pairs`:
    by two indices, the lower first. `facts`: values of the machine, or any other line."""

    cards: tuple[Card, ...] = ()
    driver: str = "550.163.01"
    enumerated: tuple[int, ...] | None = None
    pairs: Mapping[tuple[int, int], Mapping[str, object]] = dataclasses.field(default_factory=dict)
    facts: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """The file of answers. Of a repeated key the first value applies."""
        order = range(len(self.cards)) if self.enumerated is None else self.enumerated
        lines: list[tuple[str, object]] = [
            *self.facts.items(),
            ("driver", self.driver),
            ("enumerated", " ".join(map(str, order))),
        ]
        for place, card in enumerate(self.cards):
            lines += card.lines(place)
        for (one, two), facts in self.pairs.items():
            lines += [(f"pair.{one}.{two}.{key}", value) for key, value in facts.items()]
        return "".join(f"{key} {value}\n" for key, value in lines)

    def with_values(self, place: int | None = None, /, **facts: object) -> Machine:
        """This machine with other values, of the card at index `place` if it is given. A double
        underscore represents a dot in a key."""
        named = {key.replace("__", "."): value for key, value in facts.items()}
        if place is None:
            return dataclasses.replace(self, facts={**self.facts, **named})
        card = self.cards[place]
        changed = dataclasses.replace(card, facts={**card.facts, **named})
        cards = (*self.cards[:place], changed, *self.cards[place + 1 :])
        return dataclasses.replace(self, cards=cards)


class FakeDriver:
    """A root below which the library is installed as in a driver container, and the file with its
    answers. `without`: symbols that the library lacks, like that of an old driver."""

    def __init__(self, folder: Path, machine: Machine, without: tuple[str, ...] = ()) -> None:
        self.root = folder / "driver"
        self.facts = folder / "facts"
        libraries = self.root / "usr" / "lib64"
        libraries.mkdir(parents=True)
        _link(folder, libraries / SONAME, without)
        self.set_machine(machine)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "FAKE_NVML": str(self.facts)}

    def set_machine(self, machine: Machine) -> None:
        new = self.facts.with_suffix(".new")
        new.write_text(machine.text(), errors="surrogateescape")
        new.replace(self.facts)

    def child(self) -> int | None:
        """The id of the agent's child process that has this root among its arguments."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.root).encode() in arguments:
                return int(path.parent.name)
        return None

    def event(
        self, place: int, data: int, type: int = XID, gi: int = 0xFFFFFFFF, ci: int = 0xFFFFFFFF
    ) -> None:
        with open(f"{self.facts}.events", "a") as events:
            events.write(f"{place} {type} {data} {gi} {ci}\n")


def missing() -> str | None:
    """The reason why the fake driver can't be built here."""
    return None if shutil.which("gcc") else "no gcc to compile the fake driver"


def nvml_header() -> Path | str:
    """The folder of NVIDIA's nvml.h, or the reason why it is not available."""
    folder = source("go-nvml")
    return folder if isinstance(folder, str) else folder / "gen" / "nvml"


def compile_c(*arguments: str) -> str:
    """The compiler's messages; empty if it succeeds."""
    words = ["gcc", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", *arguments]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60).stderr


@functools.cache
def _object() -> Path:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    target = Path(folder.name) / "fake.o"
    messages = compile_c("-O1", "-fPIC", "-c", "-o", str(target), str(SOURCES / "fake.c"))
    assert not messages, messages
    return target


def _link(folder: Path, target: Path, without: tuple[str, ...]) -> None:
    script = folder / "symbols"
    local = "".join(f"{name};" for name in without)
    script.write_text(f"{{ {f'local: {local}' if local else ''} }};")
    flags = ("-shared", "-pthread", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={script}")
    messages = compile_c(*flags, "-o", str(target), str(_object()))
    assert not messages, messages
