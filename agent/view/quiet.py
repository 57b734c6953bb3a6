"""What leaves the CPUs of owners on a node, and what can't."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.host import files
from agent.model import bounds
from agent.view import features
from agent.view.features import ShownFeature
from agent.view.format import printable, printable_json

SCHEMA_VERSION: Final = 1
"""The version of the JSON output."""
_MAX_BYTES: Final = 1 << 20


class ShownQuietOwner(msgspec.Struct, frozen=True):
    """An owner that asks for quiet CPUs."""

    title: str
    cpus: str
    features: tuple[str, ...]


class ShownQuiet(msgspec.Struct, frozen=True):
    """What the last second has brought."""

    features: tuple[ShownFeature, ...]
    owners: tuple[ShownQuietOwner, ...]
    failed: tuple[str, ...] = ()
    """The first writes that failed."""
    faults: tuple[str, ...] = ()
    """The first annotations that can't be read."""
    schema_version: int = SCHEMA_VERSION


_quiet: Final = msgspec.json.Decoder(ShownQuiet)


def read(path: str) -> ShownQuiet:
    """What the agent wrote last. Raises OSError and JsonError."""
    return bounds.decode(_quiet, files.read(path, _MAX_BYTES))


def as_text(quiet: ShownQuiet) -> str:
    """A line for each feature, then the owners."""
    lines = ["Quiet CPUs on this node:", *features.lines(quiet.features)]
    if not quiet.features:
        lines = ["The agent of this node quiets no CPUs: it does with --quiet=act or observe."]
    lines += ["Owners that ask for them:"] if quiet.owners else ["No owner asks for them."]
    lines += [
        f"  {owner.title}  CPUs {owner.cpus}  {', '.join(owner.features)}" for owner in quiet.owners
    ]
    if quiet.faults:
        lines += ["Annotations that can't be read:", *(f"  {fault}" for fault in quiet.faults)]
    if quiet.failed:
        lines += ["Not written:", *(f"  {failure}" for failure in quiet.failed)]
    return "\n".join(map(printable, lines)) + "\n"


def as_json(quiet: ShownQuiet) -> str:
    """The same as JSON."""
    return printable_json(msgspec.json.format(msgspec.json.encode(quiet)).decode()) + "\n"
