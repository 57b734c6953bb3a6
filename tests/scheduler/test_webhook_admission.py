"""The verdicts of the webhook on Bindings, and the AdmissionReviews that it decodes and encodes."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod
from agent.scheduler import webhook
from agent.scheduler.webhook import (
    FailurePolicy,
    PodReadError,
    ReviewError,
    binding_verdict,
    decode,
    encode,
)
from tests.deploy.manifests import of_kind
from tests.scheduler.reviews import ALICE, Object, review


def pod(
    *, limits: Object | None = None, requests: Object | None = None, init: bool = False
) -> ApiPod:
    """A pod with one container that has these resources, and one with only a CPU limit."""
    requesting = {"name": "requesting", "resources": {"limits": limits, "requests": requests}}
    plain = {"name": "plain", "resources": {"limits": {"cpu": "1"}}}
    fields = {"initContainers": [requesting], "containers": [plain]} if init else {}
    return apiobjects.from_object(
        {
            "metadata": {"name": "p", "namespace": "gpu", "uid": "u"},
            "spec": {"containers": [plain, requesting], **fields},
        }
    )


def response_to(
    review_: Object,
    result: ApiPod | PodReadError | None = None,
    on_failure: FailurePolicy = "Fail",
) -> Object:
    """The decoded JSON of the response."""
    reads: list[tuple[str, str]] = []

    def read_pod(namespace: str, name: str) -> ApiPod | None:
        reads.append((namespace, name))
        if isinstance(result, PodReadError):
            raise result
        return result

    request = decode(json.dumps(review_).encode())
    answer = json.loads(encode(request.uid, binding_verdict(request, read_pod, on_failure)))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == review_["request"]["uid"]
    assert reads in ([], [("gpu", "p")])
    response: Object = answer["response"]
    response["pod_was_read"] = bool(reads)
    return response


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
def test_without_a_client_ca_the_response_has_no_information_about_the_pod(resource: str) -> None:
    """Every client that reaches the port can send a review."""
    request = decode(json.dumps(review(resource=resource)).encode())
    refused = binding_verdict(request, None, "Fail").refusal
    assert refused is not None
    assert (refused.code, refused.reason) == (403, "Forbidden")
    assert refused.message == (
        "alice may not bind pod gpu/p: only configured accounts may, since the webhook reads no "
        "pods without client-ca-file"
    )
    ignored = binding_verdict(request, None, "Ignore")
    assert (ignored.refusal, ignored.warning) == (
        None,
        "pod gpu/p was not read before it was bound",
    )


def test_without_a_client_ca_other_requests_are_allowed() -> None:
    request = decode(json.dumps(review(resource="pods")).encode())
    assert binding_verdict(request, None, "Fail").refusal is None


GPU_POD = pod(limits={"nvidia.com/gpu": "1"})


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize(
    ("amounts", "resources"),
    [
        ({"nvidia.com/gpu": "1"}, "nvidia.com/gpu"),
        ({"koordinator.sh/gpu": 100}, "koordinator.sh/gpu"),
        (
            {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"},
            "koordinator.sh/gpu-core, koordinator.sh/gpu-memory",
        ),
        ({"koordinator.sh/gpu.shared": "1"}, "koordinator.sh/gpu.shared"),
        ({"amd.com/gpu": "1"}, "amd.com/gpu"),
        ({"dcu.com/gpu": "1"}, "dcu.com/gpu"),
    ],
)
@pytest.mark.parametrize("where", ["limits", "requests", "init"])
def test_other_accounts_may_not_bind_a_pod_with_gpus(
    resource: str, amounts: Object, resources: str, where: str
) -> None:
    result = pod(
        limits=amounts if where != "requests" else None,
        requests=amounts if where == "requests" else None,
        init=where == "init",
    )
    refused = response_to(review(resource=resource), result)
    assert refused["allowed"] is False
    assert refused["status"] == {
        "code": 403,
        "reason": "Forbidden",
        "message": f"alice may not bind pod gpu/p, which requests {resources}: "
        "only configured accounts may bind pods with GPUs",
    }


@pytest.mark.parametrize(
    "amounts",
    [
        {},
        {"cpu": "4", "memory": "1Gi"},
        {"nvidia.com/gpu": "0"},
        {"koordinator.sh/rdma": "100"},
        {"vendor.com/gpu": "1"},
        {"nvidia.com/gpu-driver": "1"},
    ],
)
def test_every_account_may_bind_a_pod_without_gpus(amounts: Object) -> None:
    assert response_to(review(), pod(limits=amounts))["allowed"] is True


@pytest.mark.parametrize(
    ("resource", "operation", "group"),
    [
        ("pods", "CREATE", ""),
        ("pods/eviction", "CREATE", ""),
        ("pods/binding", "UPDATE", ""),
        ("pods/binding", "CREATE", "example.com"),
        ("bindings/status", "CREATE", ""),
        ("nodes", "DELETE", ""),
    ],
)
def test_other_requests_are_allowed(resource: str, operation: str, group: str) -> None:
    response = response_to(review(ALICE, resource, operation, group), GPU_POD)
    assert response["allowed"] is True
    assert not response["pod_was_read"]


def test_the_name_of_the_pod_may_be_only_in_the_body() -> None:
    assert response_to(review(resource="bindings", name=""), GPU_POD)["allowed"] is False


def test_the_binding_of_a_missing_pod_is_rejected() -> None:
    """The pod may be created between the read and the Binding."""
    for policy in ("Fail", "Ignore"):
        response = response_to(review(), None, policy)
        assert response["allowed"] is False
        assert response["status"]["code"] == 404
        assert response["status"]["message"] == "pod gpu/p does not exist"


def test_the_failure_policy_applies_if_the_pod_cannot_be_read() -> None:
    error = PodReadError("GET /api/v1/x: 500 etcd is unavailable")
    refused = response_to(review(), error, "Fail")
    assert refused["allowed"] is False
    assert refused["status"]["code"] == 503
    assert refused["status"]["message"].endswith("could not be read: " + str(error))
    allowed = response_to(review(), error, "Ignore")
    assert allowed["allowed"] is True
    assert allowed["warnings"] == ["pod gpu/p could not be read before it was bound"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "is not JSON"),
        (b'{"more":' + b"[" * 100_000, "is not JSON"),
        (b"{}", "missing required field `request`"),
        (json.dumps({**review(), "apiVersion": "admission.k8s.io/v1beta1"}).encode(), "v1beta1"),
        (json.dumps({**review(), "kind": "Review"}).encode(), "Review of admission.k8s.io/v1 is"),
        (json.dumps(review(uid="")).encode(), "request.uid is empty"),
        (json.dumps(review(namespace="")).encode(), "request.namespace is empty"),
        (json.dumps(review(name="", object=None)).encode(), "request.name"),
    ],
)
def test_the_error_for_an_invalid_review_names_the_field(body: bytes, message: str) -> None:
    with pytest.raises(ReviewError, match=message):
        decode(body)


@given(st.binary(max_size=200))
def test_other_bodies_are_rejected(body: bytes) -> None:
    with pytest.raises(ReviewError):
        decode(body)


def test_the_policy_that_sets_the_scheduler_of_gpu_pods_selects_the_same_pods() -> None:
    """Otherwise a pod without GPUs would get the scheduler name, or a pod with GPUs would not."""
    policy = of_kind("MutatingAdmissionPolicy")["topolet-gpu-scheduler"]["spec"]
    (condition,) = (
        each["expression"] for each in policy["matchConditions"] if each["name"] == "asks-for-gpus"
    )
    assert set(re.findall(r"startsWith\('([^']+)'\)", condition)) == {webhook.GPU_PREFIX}
    (names,) = re.findall(r"key in \[([^\]]+)\]", condition)
    assert set(re.findall(r"'([^']+)'", names)) == webhook.GPU_NAMES
