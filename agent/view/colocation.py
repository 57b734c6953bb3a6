"""What colocation does to the pods of a node, and why BE pods have the CPU that they have."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.allocate.colocation.be_suppress import BeAmount, Suppression
from agent.host import files
from agent.model import bounds
from agent.view import evictions as evictions_view
from agent.view import features
from agent.view.evictions import ShownEvictions
from agent.view.features import ShownFeature
from agent.view.format import printable, printable_json

SCHEMA_VERSION: Final = 1
"""The version of the JSON output."""
_MAX_BYTES: Final = 1 << 20


class ShownColocation(msgspec.Struct, frozen=True):
    """What the last second has brought."""

    features: tuple[ShownFeature, ...]
    suppresses: bool
    """False: the rest is what BE pods would have, if cpu-suppression acted."""
    be_cpus: str = ""
    """The CPUs of suppressed BE pods; "" if their pool is theirs."""
    be_quota_milli: int | None = None
    """The quota of all BE pods together; None without one."""
    amount: BeAmount | None = None
    """The terms of what BE pods get; None if nothing suppresses them."""
    failed: tuple[str, ...] = ()
    evictions: ShownEvictions | None = None
    """They are in a file of their own; None if the agent has none."""
    schema_version: int = SCHEMA_VERSION


def shown(
    features: tuple[ShownFeature, ...],
    suppression: Suppression,
    failed: tuple[str, ...],
    *,
    suppresses: bool,
) -> ShownColocation:
    """The values for people. `suppresses`: whether BE pods have those of the suppression."""
    quota = suppression.quota
    return ShownColocation(
        features,
        suppresses,
        "" if suppression.cpus is None else str(suppression.cpus),
        None if quota is None else 1000 * quota.microseconds // quota.period_microseconds,
        suppression.amount,
        failed,
    )


_colocation: Final = msgspec.json.Decoder(ShownColocation)


def read(path: str) -> ShownColocation:
    """What the agent wrote last. Raises OSError and JsonError."""
    return bounds.decode(_colocation, files.read(path, _MAX_BYTES))


def as_text(colocation: ShownColocation) -> str:
    """A line for each feature, then the terms of what BE pods get."""
    lines = ["Colocation on this node:"]
    lines += features.lines(colocation.features)
    lines += be_lines(colocation)
    if colocation.failed:
        lines += ["Not written:", *(f"  {failure}" for failure in colocation.failed)]
    text = "\n".join(map(printable, lines)) + "\n"
    if colocation.evictions is not None:
        text += evictions_view.as_text(colocation.evictions)
    return text


def be_lines(colocation: ShownColocation) -> list[str]:
    """What BE pods get by the suppression, and its terms; empty if nothing suppresses them."""
    if colocation.amount is None:
        return []
    lines = ["CPU of BE pods:", *(f"  {line}" for line in _terms(colocation.amount))]
    verb = "have" if colocation.suppresses else "would have"
    if colocation.be_cpus:
        lines.append(f"  they {verb} CPUs {colocation.be_cpus} of their pool")
    if colocation.be_quota_milli is not None:
        lines.append(f"  they {verb} {colocation.be_quota_milli} milli-CPU of quota together")
    return lines


def as_json(colocation: ShownColocation) -> str:
    return printable_json(msgspec.json.format(msgspec.json.encode(colocation)).decode()) + "\n"


def _terms(amount: BeAmount) -> list[str]:
    rows = [
        ("share of the node that may be in use", amount.usable),
        ("used by pods that are not BE", -amount.other_pods),
        ("used by applications of the host", -amount.applications),
        ("used by the machine, or reserved for it", -amount.machine),
        ("left, in milli-CPU", amount.milli),
    ]
    if amount.least is not None:
        rows.insert(-1, ("at least, by strategy", amount.least))
    width = max(len(name) for name, _ in rows)
    digits = max(len(str(value)) for _, value in rows)
    return [f"{name:<{width}}  {value:>{digits}}" for name, value in rows]
