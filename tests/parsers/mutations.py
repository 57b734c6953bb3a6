"""Inputs for parsers: valid examples, changed by a random generator into hostile ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from agent.model import wire

Text = TypeVar("Text", str, bytes)
Mutation = Callable[[random.Random, Sequence[Any]], Any]
"""Makes one input of the examples."""

_MAX_CHANGES: Final = 3
_MAX_CHARACTERS: Final = 1 << 20
"""Of an input, which may be repeated several times, and of its parts: what is cut takes memory."""

_BARE: Final = (
    "9" * 5_000,
    "-1",
    "18446744073709551616",
    "1e400",
    "1e-400",
    "0.1",
    "-0",
    "NaN",
    "[" * 100_000,
    '{"":' * 2_000,
    "true",
    "null",
    '"\\ud800"',
    "{}",
    "[]",
)
"""JSON that Python's encoder does not write, or that is often of the wrong type."""

WORDS: Final = (
    *("", " ", ",", ",,", "-", "--", ":", "/", "//", "=", ".", "..", "%", "*", "all", "none"),
    *("\0", "\n", "\r\n", "\t", "\x7f", "\u0663", "\u00b2", "\ufeff", "\U0001f600", "\u2028"),
    *("0-8191", "0-8192", "0-999999999", "1-0", "0-7:1/2", "0-7:9/2", "0-7:1/0", "0x1"),
    *("-1", "0", "00", "+1", "1e9", "9" * 20, "9" * 400, "9" * 5_000, "nan", "inf", "1_0"),
    *("9e99", "1Ei", "-1Ki", "1e-99", ".", "5.", "0x", "A" * 9_000, "{}", "[]", "null", "max"),
    *("../../etc", "/proc/self/root", "a/b/c/d", "pod", "kubepods", "-.slice", "a-b.slice"),
    *(
        "nvidia.com/gpu=all",
        "GPU-",
        "MIG-",
        "0:0",
        "::",
        "void",
        "/var/run/nvidia-container-devices",
    ),
)
"""Parts that numbers, lists, paths and names are cut or compared by, and extreme values."""

_ENCODED: Final = (
    *(each.encode() for each in WORDS),
    *(b"\xff", b"\x80", b"\xc3", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0" * 9),
    *(b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x7f"),
)


def of_text(rng: random.Random, seeds: Sequence[str]) -> str:
    """A text with parts of others, extreme values and single characters changed."""
    text = rng.choice(seeds)
    for _ in range(rng.randint(1, _MAX_CHANGES)):
        text = _changed(rng, text, rng.choice(seeds), WORDS)
    return text


def of_name(rng: random.Random, seeds: Sequence[str]) -> str:
    """The same with bytes that are not UTF-8, as file names and arguments have them."""
    text = of_text(rng, seeds)
    if rng.random() < 0.2:
        at = rng.randint(0, len(text))
        text = f"{text[:at]}\udcff{text[at:]}"
    return text


def of_bytes(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """The same of bytes, with flipped bits."""
    data = rng.choice(seeds)
    for _ in range(rng.randint(1, _MAX_CHANGES)):
        if data and rng.random() < 0.4:
            at = rng.randrange(len(data))
            data = data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
        else:
            data = _changed(rng, data, rng.choice(seeds), _ENCODED)
    return data


def of_json(rng: random.Random, seeds: Sequence[str]) -> str:
    """JSON with values replaced, removed, added and moved; sometimes not JSON any more."""
    value = json.loads(rng.choice(seeds))
    bare: list[str] = []
    for _ in range(rng.randint(1, _MAX_CHANGES)):
        value = _replaced(rng, value, bare, json.loads(rng.choice(seeds)))
    text = json.dumps(value)
    for place, each in enumerate(bare):
        text = text.replace(f'"\\ue000{place}"', each, _MAX_CHARACTERS // len(each) + 1)
    if rng.random() < 0.15:
        text = _changed(rng, text, rng.choice(seeds), WORDS)
    return text


def of_json_bytes(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """The same as bytes, sometimes not UTF-8."""
    data = of_json(rng, [each.decode() for each in seeds]).encode()
    return _changed(rng, data, b"", _ENCODED) if rng.random() < 0.1 else data


def of_values(rng: random.Random, seeds: Sequence[Any]) -> Any:
    """Decoded JSON, as a YAML reader or another decoder returns it."""
    value = rng.choice(seeds)
    for _ in range(rng.randint(1, _MAX_CHANGES)):
        value = _replaced(rng, value, None, rng.choice(seeds))
    return value


def of_message(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """A protobuf message with fields changed, repeated, removed and moved."""
    message = rng.choice(seeds)
    for _ in range(rng.randint(1, _MAX_CHANGES)):
        message = _message(rng, message, 0)
    return of_bytes(rng, (message,)) if rng.random() < 0.2 else message


def _changed(rng: random.Random, text: Text, other: Text, words: Sequence[Text]) -> Text:
    return _changed_anyhow(rng, text, other, words)[:_MAX_CHARACTERS]


def _changed_anyhow(rng: random.Random, text: Text, other: Text, words: Sequence[Text]) -> Text:
    size = len(text)
    at = rng.randint(0, size)
    end = min(size, at + rng.choice((0, 1, 1, 2, 8, size)))
    what = rng.random()
    if what < 0.5:
        return text[:at] + rng.choice(words) + text[end:]
    if what < 0.65:
        return text[:at] + text[end:]
    if what < 0.8:
        part, times = text[at:end], rng.choice((2, 3, 40))
        return text[:at] + part * min(times, _MAX_CHARACTERS // max(len(part), 1) + 1) + text[end:]
    start = rng.randint(0, len(other))
    return text[:at] + other[start : start + rng.randint(0, 40)] + text[end:]


def _replaced(rng: random.Random, value: Any, bare: list[str] | None, other: Any) -> Any:
    """A copy with one value changed, deep or not."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        what = rng.random()
        if what < 0.75:
            return {**value, key: _replaced(rng, value[key], bare, other)}
        if what < 0.83:
            return {name: each for name, each in value.items() if name != key}
        return {**value, rng.choice(WORDS): value[key]}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        what = rng.random()
        if what < 0.75:
            return [*value[:at], _replaced(rng, value[at], bare, other), *value[at + 1 :]]
        if what < 0.83:
            return value[:at] + value[at + 1 :]
        return [*value, *[value[at]] * rng.choice((1, 1, 30))]
    if isinstance(value, str) and rng.random() < 0.6:
        return _changed(rng, value, value, WORDS)
    what = rng.random()
    if bare is not None and what < 0.35:
        bare.append(rng.choice(_BARE))
        return f"\ue000{len(bare) - 1}"
    if what < 0.7:
        return rng.choice((-1, 0, 1, 2**31, 2**63, 2**64, 10**40, 0.5, True, None, [], {}, ""))
    return rng.choice((other, [value], {"": value}, rng.choice(WORDS)))


def _message(rng: random.Random, message: bytes, depth: int) -> bytes:
    try:
        found = list(wire.fields(message))
    except wire.WireError:
        return of_bytes(rng, (message,))
    if not found:
        return of_bytes(rng, (message,))
    at = rng.randrange(len(found))
    field, kind, payload = found[at]
    what = rng.random()
    if what < 0.6:
        if kind == wire.BYTES and depth < 6 and rng.random() < 0.7:
            payload = _message(rng, payload, depth + 1)
        elif kind == wire.BYTES:
            payload = of_bytes(rng, (payload,))
        else:
            payload = rng.choice((b"\0", b"\x7f", b"\xff" * 9 + b"\x01", b"\xff" * 4 + b"\x0f"))
            kind = 0
        found[at] = field, kind, payload
    elif what < 0.7:
        found[at] = rng.randint(1, 20), kind, payload
    elif what < 0.8:
        del found[at]
    else:
        found[at:at] = [found[at]] * rng.choice((1, 2, 50))
    return b"".join(_field(*each) for each in found)


def _field(field: int, kind: int, payload: bytes) -> bytes:
    if kind == wire.BYTES:
        return _varint(field << 3 | kind) + _varint(len(payload)) + payload
    return _varint(field << 3 | kind) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
