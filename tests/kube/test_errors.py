from __future__ import annotations

import pytest

from agent.kube import errors
from agent.kube.errors import Details, Status, StatusCause

# Messages of kube-apiserver 1.36.3.
DENIED = (
    'nodes "n1" is forbidden: User "system:serviceaccount:topolet:agent" cannot patch resource '
    '"nodes/status" in API group "" at the cluster scope'
)
DENIED_BELOW = (
    'pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "x"'
)
DENIED_GROUP = (
    'devices.scheduling.koordinator.sh is forbidden: User "u" cannot create resource "devices" in '
    'API group "scheduling.koordinator.sh" at the cluster scope'
)
POLICY = (
    "ValidatingAdmissionPolicy 'own-node' with binding 'own-node' denied request: "
    "object n2 is not of node n1"
)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.RejectedError),
        (401, "Unauthorized", errors.UnauthorizedError),
        (403, "Forbidden", errors.ForbiddenError),
        (404, "NotFound", errors.NotFoundError),
        (409, "Conflict", errors.ConflictError),
        (409, "AlreadyExists", errors.RejectedError),
        (410, "Expired", errors.GoneError),
        (415, "UnsupportedMediaType", errors.RejectedError),
        (422, "Invalid", errors.RejectedError),
        (429, "TooManyRequests", errors.TooManyRequestsError),
        (500, "InternalError", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (302, "", errors.ServerError),
    ],
)
@pytest.mark.parametrize("in_stream", [False, True])
def test_every_code_has_its_error(
    code: int, reason: str, kind: type[errors.KubeError], in_stream: bool
) -> None:
    status = Status(code=code, reason=reason, message="because")
    error = errors.refusal("GET /api", status, 0 if in_stream else code)
    assert type(error) is kind
    assert str(error) == f"GET /api: {code} because"


@pytest.mark.parametrize(
    ("message", "verb", "resource", "group", "text"),
    [
        (
            DENIED,
            "patch",
            "nodes/status",
            "",
            "GET /x: no role allows system:serviceaccount:topolet:agent patch nodes/status "
            "at the cluster scope",
        ),
        (
            DENIED_BELOW,
            "list",
            "pods",
            "",
            'GET /x: no role allows u list pods in the namespace "x"',
        ),
        (
            DENIED_GROUP,
            "create",
            "devices",
            "scheduling.koordinator.sh",
            "GET /x: no role allows u create devices of scheduling.koordinator.sh "
            "at the cluster scope",
        ),
        (POLICY, "", "", "", f"GET /x: 403 {POLICY}"),
    ],
)
def test_forbidden_error_names_the_missing_permission(
    message: str, verb: str, resource: str, group: str, text: str
) -> None:
    error = errors.refusal("GET /x", Status(code=403, reason="Forbidden", message=message))
    assert isinstance(error, errors.ForbiddenError)
    assert (error.verb, error.resource, error.group) == (verb, resource, group)
    assert str(error) == text


def test_conflict_names_the_fields_of_other_managers() -> None:
    details = Details(
        causes=(
            StatusCause(
                reason="FieldManagerConflict",
                message='conflict with "m1"',
                field='.zones[name="a"].cpus',
            ),
        )
    )
    error = errors.refusal("GET /x", Status(code=409, reason="Conflict", details=details))
    assert isinstance(error, errors.ConflictError)
    assert error.fields == ('.zones[name="a"].cpus',)


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [(None, None, None), (None, 2, 2), (3.0, None, 3), (3.0, 2, 3)],
)
@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_of_header_and_status(
    code: int, header: float | None, details: float | None, seconds: float | None
) -> None:
    status = Status(details=Details(retry_after_seconds=details))
    error = errors.refusal("GET /x", status, code, header)
    assert error.retry_after_seconds == seconds


@pytest.mark.parametrize(
    "status",
    [
        Status(code=504, message="Too large resource version: 774, current: 262"),
        Status(code=504, details=Details(causes=(StatusCause(reason="ResourceVersionTooLarge"),))),
    ],
)
def test_future_resource_version_is_distinguished_from_other_timeouts(status: Status) -> None:
    error = errors.refusal("GET /x", status)
    assert isinstance(error, errors.ServerError)
    assert error.future_version
    other = errors.refusal("GET /x", Status(code=504, message="Timeout: request did not complete"))
    assert isinstance(other, errors.ServerError)
    assert not other.future_version


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", ""),
        (b"<html>no</html>", "<html>no</html>"),
        (b'{"message": "truncated', '{"message": "truncated'),
        (b'"\xff\xfe"', '"��"'),
        (b"[1]", "[1]"),
        (b'{"message": "kept", "details": {"causes": null}}', "kept"),
    ],
)
def test_body_without_a_status_becomes_the_message(body: bytes, message: str) -> None:
    assert errors.status_of(body).message == message
