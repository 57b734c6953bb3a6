"""One parser with examples of its input, and the property that holds for every input."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import msgspec
from google.protobuf.message import Message

from tests.parsers import mutations
from tests.parsers.mutations import Mutation

MAX_CPU_SECONDS: Final = 2.0
"""Of one input; 9,000 bytes take milliseconds."""
MAX_BYTES: Final = 96 << 20
"""How much the process may grow, with inputs, values and the allocator's rest of all of them."""
_MAX_MESSAGE_CHARACTERS: Final = 64 << 10
_MAX_BITS: Final = 512
"""Of a number in a value that is longer than its text. A quantity has 30 digits and an exponent of
two digits."""
_BITS_OF_CHARACTER: Final = 4
_VALUES_EVERY: Final = 16
_APART: Final = 2**32

Errors = Mapping[type[Exception], str]
"""A part of the message by the kind of error."""


@dataclass(frozen=True)
class Target:
    """`read` takes an input that `mutation` made of `seeds`, and returns a value or raises one of
    `raises`. `weight`: one input takes as long as so many of others; the suite tries fewer."""

    name: str
    read: Callable[[Any], object]
    mutation: Mutation
    seeds: Sequence[Any]
    raises: Errors = field(default_factory=dict)
    weight: int = 1

    def try_examples(self) -> None:
        """They are valid."""
        for each in self.seeds:
            self.read(each)


def json_target(
    name: str,
    read: Callable[[bytes], object],
    *examples: object,
    raises: Errors = MappingProxyType({}),
) -> Target:
    """A parser of JSON; the examples are decoded, or bytes."""
    seeds = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in examples]
    return Target(name, read, mutations.of_json_bytes, seeds, raises)


def message_target(
    name: str,
    read: Callable[[bytes], object],
    *examples: Message | bytes,
    raises: Errors = MappingProxyType({}),
) -> Target:
    """A parser of protobuf."""
    seeds = [each if isinstance(each, bytes) else each.SerializeToString() for each in examples]
    return Target(name, read, mutations.of_message, seeds, raises)


def outcome_of(read: Callable[[], object], *kinds: type[Exception]) -> object:
    """What a reader returns, or the message of its error of these kinds."""
    try:
        return read()
    except kinds as error:
        return str(error)


class SlipError(AssertionError):
    """An input without the property; the message names target, seed and number."""


def inputs(target: Target, seed: int, first: int, count: int) -> Iterator[tuple[int, Any]]:
    """Inputs by number; each depends on the seed and its number alone."""
    rng = random.Random()
    for number in range(first, first + count):
        rng.seed(seed * _APART + number)
        yield number, target.mutation(rng, target.seeds)


def run(target: Target, count: int, seed: int = 0, first: int = 0) -> float:
    """Tries the examples, which must be valid, and then so many inputs. Returns the most seconds of
    CPU time that one took. Raises SlipError."""
    target.try_examples()
    before = _peak_bytes(reset=True)
    slowest = 0.0
    for number, each in inputs(target, seed, first, count):
        try:
            slowest = max(slowest, _tried(target, each, number % _VALUES_EVERY == 0))
        except Exception as error:
            where = f"{target.name}: seed {seed}, number {number}: {each!r:.2000}"
            raise SlipError(where) from error
    grown = _peak_bytes() - before
    if grown > MAX_BYTES:
        raise SlipError(f"{target.name}: seed {seed}: the process grew by {grown} bytes")
    return slowest


def _tried(target: Target, given: Any, with_value: bool) -> float:
    began = time.thread_time()
    try:
        value = target.read(given)
    except tuple(target.raises) as error:
        message = str(error)
        assert len(message) <= _MAX_MESSAGE_CHARACTERS, f"a message of {len(message)} characters"
        named = [text for kind, text in target.raises.items() if isinstance(error, kind)]
        assert all(text in message for text in named), message
    else:
        if with_value:
            _check(value, max(_MAX_BITS, _BITS_OF_CHARACTER * len(repr(given))))
    took = time.thread_time() - began
    assert took <= MAX_CPU_SECONDS, f"took {took:.1f} s of CPU time"
    return took


def _check(value: object, max_bits: int) -> None:
    """Whether no number in the value is larger than its text: no user of it computes with millions
    of digits."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, int):
            assert each.bit_length() <= max_bits, f"a number of {each.bit_length()} bits"
        elif isinstance(each, dict):
            waiting += (*each, *each.values())
        elif isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, msgspec.Struct):
            waiting += [getattr(each, name) for name in each.__struct_fields__]


def _peak_bytes(*, reset: bool = False) -> int:
    """The most memory that the process has had, since the last reset if the kernel allows one."""
    if reset:
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:
            pass
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10
