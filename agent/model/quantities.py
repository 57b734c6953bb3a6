"""Kubernetes quantities (`2`, `1500m`, `1.5Gi`, `2e3`) as plain integers, rounded up.

The API server rounds up as well: a fraction of a unit is never lost.
"""

from __future__ import annotations

import re
from typing import Final

Quantity = str | int | float
"""A quantity in JSON: a string, or a bare number."""


class QuantityError(ValueError):
    """An invalid quantity; the message quotes it."""


def milli(quantity: Quantity) -> int:
    """Thousandths (of a CPU), rounded away from zero. Raises QuantityError."""
    return _scaled(quantity, 3)


def whole(quantity: Quantity) -> int:
    """Units (bytes, devices), rounded away from zero. Raises QuantityError."""
    return _scaled(quantity, 0)


def cpu(cpu_milli: int) -> str:
    """The shortest quantity for an amount of CPU."""
    return f"{cpu_milli}m" if cpu_milli % 1000 else str(cpu_milli // 1000)


def amount(resource: str, value: int) -> str:
    """An amount of a resource for people: of `cpu` in milli-CPU, of memory in bytes."""
    if resource == "cpu":
        return cpu(value)
    if "memory" not in resource and not resource.startswith("hugepages-"):
        return str(value)
    powers = (each for each in range(len(_BINARY), 0, -1) if value % 1024**each == 0)
    power = next(powers, 0) if value else 0
    return f"{value // 1024**power}{_BINARY[power - 1] if power else ''}"


def page_bytes(size: str) -> int:
    """The size of huge pages as the kubelet writes it to a runtime: `2MB` are 2 MiB. Raises
    QuantityError."""
    return whole(f"{size.removesuffix('B')}i")


_BINARY: Final = ("Ki", "Mi", "Gi", "Ti")
PATTERN: Final = (
    r"([+-]?)([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})"
    r"(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
"""The texts that are quantities."""
_TEXT: Final = re.compile(PATTERN)
_POWERS_OF_TEN: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_POWERS_OF_TWO: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def _scaled(quantity: Quantity, decimals: int) -> int:
    text = repr(quantity) if isinstance(quantity, float) else str(quantity)
    match = _TEXT.fullmatch(text)
    if not match:
        raise QuantityError(f"{text[:40]!r} is not a quantity")
    sign, digits, suffix, exponent = match.groups()
    before, _, after = digits.partition(".")
    value = int(before + after)
    power = decimals - len(after) + int(exponent or 0)
    if suffix in _POWERS_OF_TWO:
        value <<= _POWERS_OF_TWO[suffix]
    elif suffix:
        power += _POWERS_OF_TEN[suffix]
    scale: int = 10 ** abs(power)
    scaled = value * scale if power >= 0 else -(-value // scale)
    return -scaled if sign == "-" else scaled
