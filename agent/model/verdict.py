"""What becomes of a runtime's call: the verdict of a hook, and the status codes of its errors.

The relay answers with these values and loads nothing else of the model.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Code(enum.IntEnum):
    """The status codes of gRPC (google/rpc/code.proto), of ttrpc too."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Wait(NamedTuple):
    """The frontend keeps the call and asks again soon; `reason` is the error if it stays so."""

    reason: str = ""


class Refuse(NamedTuple):
    """The caller gets this status; the runtime never sees the call."""

    code: int
    message: str
