"""A hook's verdict on a call to the runtime, and the status codes of its errors.

The relay needs only this module of the model.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class Code(enum.IntEnum):
    """The status codes of gRPC (google/rpc/code.proto), and of ttrpc."""

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
    """The frontend holds the call, and calls the hook again soon."""

    reason: str = ""
    """The error if the deadline passes."""


class Refuse(NamedTuple):
    """The caller gets this status; the runtime does not get the call."""

    code: int
    message: str


def undecided(error: Exception) -> Refuse:
    """The answer to a call about which neither the hook nor its failure policy, which raised this
    exception, could decide: a container that it creates might run on the CPUs of an owner."""
    text = f"the hook can't decide, and its failure policy raised {error!r}"
    return Refuse(Code.INTERNAL, text)


class FailureReason:
    """Why a hook could not decide, or refused, as metrics name it."""

    TIMEOUT: Final = "timeout"
    NO_CPU: Final = "no_cpu"
    INTERNAL_ERROR: Final = "internal_error"
    TOO_LARGE: Final = "too_large"
    COMPRESSED: Final = "compressed"
    """The message can't be decompressed within the limit."""
    MALFORMED: Final = "malformed"
    NOT_HONORED: Final = "not_honored"
    """The container can't have the devices allocated to it."""
    DEVICE_TAKEN: Final = "device_taken"
    """The request names a device of another pod."""
    UNSUPPORTED: Final = "unsupported"
    """The frontend can't change the fields that the devices need."""
    PRIVILEGED: Final = "privileged"
    """The container sees every device."""
