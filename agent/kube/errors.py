"""The errors of requests to the API server and to the embedded store; the error for a Status."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError


class StoreError(RuntimeError):
    """An object can't be written or read. The message names kind, name and reason."""

    retry_after_seconds: float | None = None
    """The time until the next request that the store asks for, None if it does not."""


class KubeError(StoreError):
    """The API server did not carry out the request."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnreachableError(KubeError):
    """The server did not respond, or the response is cut off or not HTTP."""


class ServerError(KubeError):
    """A 5xx.

    `future_version`: the server has not reached the requested resourceVersion."""

    def __init__(
        self,
        message: str,
        retry_after_seconds: float | None = None,
        *,
        future_version: bool = False,
    ) -> None:
        super().__init__(message, retry_after_seconds)
        self.future_version = future_version


class MalformedError(ServerError):
    """The response is invalid."""


class TooLargeError(MalformedError):
    """The response exceeds the limits of what is read."""


class UnauthorizedError(KubeError):
    """The server does not accept the credentials."""


class ForbiddenError(KubeError):
    """The server refuses the account: a role lacks `verb` on `resource` of `group`, or, with all
    three empty, an admission policy refused."""

    def __init__(self, message: str, verb: str = "", resource: str = "", group: str = "") -> None:
        super().__init__(message)
        self.verb = verb
        self.resource = resource
        self.group = group


class NotFoundError(KubeError):
    """The object or its kind does not exist."""


class ConflictError(KubeError):
    """Another client's write conflicts.

    `fields`: the fields that other managers own."""

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class GoneError(KubeError):
    """The resourceVersion or continue token is too old."""


class TooManyRequestsError(KubeError):
    """The server is overloaded, or it refuses an eviction (429).

    `disruption_budget`: what a disruption budget says about the eviction; "" if none refuses it."""

    def __init__(
        self,
        message: str,
        retry_after_seconds: float | None = None,
        *,
        disruption_budget: str = "",
    ) -> None:
        super().__init__(message, retry_after_seconds)
        self.disruption_budget = disruption_budget


UNAVAILABLE: Final = (UnreachableError, ServerError, UnauthorizedError, TooManyRequestsError)
"""While the server has these, other requests fail too."""


class RejectedError(KubeError):
    """The object or the request is invalid (400, 415, 422, or a create of an existing object)."""


class StatusCause(msgspec.Struct, frozen=True):
    """One detail of a Status."""

    reason: str = ""
    message: str = ""
    field: str = ""


class Details(msgspec.Struct, frozen=True, rename="camel"):
    """The details of a Status. Its group and kind name the resource."""

    group: str = ""
    kind: str = ""
    causes: tuple[StatusCause, ...] | None = None
    retry_after_seconds: float | None = None


class Status(msgspec.Struct, frozen=True):
    """metav1.Status: the body of every refusal, and the object of an ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


def status_of(body: bytes) -> Status:
    """Returns the Status in a body; any other body, such as a proxy's page, becomes the message."""
    try:
        return bounds.decode(_status, body)
    except JsonError:
        return Status(message=body[:_EXCERPT_BYTES].decode("utf-8", "replace").strip())


def refusal(
    request: str, status: Status, code: int = 0, retry_after_seconds: float | None = None
) -> KubeError:
    """The error for a Status. `request` describes the request, for the message; `code` is the HTTP
    status, 0 for a Status in a stream; `retry_after_seconds` of the header overrides the body's."""
    code = code or status.code
    details = status.details or Details()
    if retry_after_seconds is None:
        retry_after_seconds = details.retry_after_seconds
    causes = details.causes or ()
    message = f"{request}: {code} {status.message or status.reason}".rstrip()
    match code:
        case 401:
            return UnauthorizedError(message)
        case 403:
            return _forbidden(request, status)
        case 404:
            return NotFoundError(message)
        case 409 if status.reason != "AlreadyExists":
            return ConflictError(message, tuple(each.field for each in causes if each.field))
        case 410:
            return GoneError(message)
        case 429:
            said = (cause.message or message for cause in causes if cause.reason == _BUDGET)
            return TooManyRequestsError(
                message, retry_after_seconds, disruption_budget=next(said, "")
            )
        case _ if 400 <= code < 500:
            return RejectedError(message)
    future = any(cause.reason == _FUTURE for cause in causes) or _FUTURE_TEXT in status.message
    return ServerError(message, retry_after_seconds, future_version=future)


def _forbidden(request: str, status: Status) -> ForbiddenError:
    lacking = _LACKING.search(status.message)
    if lacking is None:
        return ForbiddenError(f"{request}: 403 {status.message or status.reason}".rstrip())
    user, verb, resource, group, where = lacking.groups()
    of_group = f" of {group}" if group else ""
    return ForbiddenError(
        f"{request}: no role allows {user} {verb} {resource}{of_group} {where}".rstrip(),
        verb,
        resource,
        group,
    )


_status = msgspec.json.Decoder(Status)
_EXCERPT_BYTES = 200
_FUTURE = "ResourceVersionTooLarge"
_BUDGET = "DisruptionBudget"
_FUTURE_TEXT = "Too large resource version"
# The message of the API server's authorizer.
_LACKING = re.compile(
    r'User "([^"]*)" cannot (\S+) resource "([^"]*)" in API group "([^"]*)"'
    r'(?: (at the cluster scope|in the namespace "[^"]*"))?'
)
