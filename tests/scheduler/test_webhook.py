from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest

from agent.http.requests import BadRequestError, HttpRequest, dispatch
from agent.kube.transport import Transport
from agent.scheduler.webhook import PATH, POD_PATH, PodReadError, ReadPod, gpus, pods, routes
from tests.kube import fake_api_server
from tests.kube.fake_api_server import Server, reply, status
from tests.scheduler.reviews import review

POD = {
    "metadata": {"name": "p", "namespace": "gpu", "uid": "u"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
}


@pytest.fixture
def read_pod(transport: Transport) -> ReadPod:
    return pods(transport)


def test_a_pod_is_read_by_its_name(server: Server, read_pod: ReadPod) -> None:
    server.answer = lambda _, connection, request: reply(connection, 200, POD)
    found = read_pod("gpu", "p/../../q")
    assert found is not None
    assert gpus(found) == ["nvidia.com/gpu"]
    (request,) = server.requests
    assert request.path == "/api/v1/namespaces/gpu/pods/p%2F..%2F..%2Fq"


def test_a_missing_pod_is_read_as_none(server: Server, read_pod: ReadPod) -> None:
    server.answer = lambda _, connection, request: reply(connection, 404, status(404, "NotFound"))
    assert read_pod("gpu", "p") is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _, connection, request: reply(connection, 403, status(403, "Forbidden")), "403"),
        (lambda _, connection, request: reply(connection, 200, {}), "Pod without a name"),
        (lambda _, connection, request: False, "GET /api/v1/namespaces/gpu/pods/p"),
    ],
)
def test_a_failed_read_raises_an_error_with_the_reason(
    server: Server, read_pod: ReadPod, answer: fake_api_server.Answer, message: str
) -> None:
    server.answer = answer
    with pytest.raises(PodReadError, match=message):
        read_pod("gpu", "p")


def test_the_endpoint_answers_reviews(
    server: Server, read_pod: ReadPod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    admit = routes(read_pod, "Fail", "ours")[PATH]
    for found, allowed in ((POD, False), ({**POD, "spec": {"containers": []}}, True)):
        server.answer = lambda _, connection, request, it=found: reply(connection, 200, it)
        answer = admit.handle(json.dumps(review()).encode())
        assert (answer.status, answer.content_type) == (200, "application/json")
        assert json.loads(answer.body)["response"]["allowed"] is allowed
    assert [each for each in caplog.messages if each.startswith("refused: alice may not bind")]
    with pytest.raises(BadRequestError, match="AdmissionReview"):
        admit.handle(b"{}")


def test_only_callers_with_a_client_certificate_get_information_about_pods(
    server: Server, read_pod: ReadPod
) -> None:
    server.answer = lambda _, connection, request: reply(connection, 200, POD)
    body = json.dumps(review()).encode()
    request = HttpRequest("POST", PATH, "application/json", body)
    served = routes(read_pod, "Fail", "ours")
    refused = dispatch(served, request)
    assert refused.status == 403
    assert b"client certificate" in refused.body
    assert not server.requests, "the pod was read"
    certified = msgspec.structs.replace(request, certified=True)
    assert b"nvidia.com/gpu" in dispatch(served, certified).body
    probe = HttpRequest("GET", "/healthz", "", b"")
    assert dispatch(served, probe).status == 200
    new = json.dumps(create_review(ONE_GPU)).encode()
    mutation = HttpRequest("POST", POD_PATH, "application/json", new)
    assert dispatch(served, mutation).status == 200, "the patch depends only on the request"


def test_without_a_client_ca_the_responses_for_all_pods_are_equal() -> None:
    served = routes(None, "Fail", "ours")
    answers = set()
    for name in ("with-gpu", "without-gpu", "absent"):
        body = json.dumps(review(name=name)).encode()
        reply_ = dispatch(served, HttpRequest("POST", PATH, "application/json", body))
        answers.add(reply_.body.replace(name.encode(), b"NAME"))
    assert len(answers) == 1


def create_review(resources: object, *, init: bool = False, **spec: Any) -> dict[str, Any]:
    """The review of a new pod with a generated name."""
    containers = [{"name": "plain"}, {"name": "c", "resources": resources}]
    fields: dict[str, Any] = {"containers": containers}
    if init:
        fields = {"containers": containers[:1], "initContainers": containers[1:]}
    pod = {"metadata": {"generateName": "p-"}, "spec": {**fields, **spec}}
    return review(resource="pods", name="", object=pod)


def patched_scheduler_name(body: dict[str, Any]) -> str | None:
    """The schedulerName in the patch; None if the response has no patch."""

    def fail(namespace: str, name: str) -> None:
        raise AssertionError("a new pod is not read")

    mutate = routes(fail, "Fail", "ours")[POD_PATH]
    answer = json.loads(mutate.handle(json.dumps(body).encode()).body)["response"]
    assert answer["uid"] == body["request"]["uid"]
    assert answer["allowed"] is True
    if "patch" not in answer:
        assert "patchType" not in answer
        return None
    assert answer["patchType"] == "JSONPatch"
    (change,) = json.loads(base64.b64decode(answer["patch"]))
    assert (change["op"], change["path"]) == ("add", "/spec/schedulerName")
    name: str = change["value"]
    return name


ONE_GPU = {"limits": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize(
    "resources",
    [
        ONE_GPU,
        {"limits": {"amd.com/gpu": 1}},
        {"limits": {"dcu.com/gpu": "1"}},
        {"limits": {"koordinator.sh/gpu-core": "50"}},
        {"requests": {"koordinator.sh/gpu.shared": "1"}},
    ],
)
@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("spec", [{}, {"schedulerName": "default-scheduler"}])
def test_a_new_pod_with_gpus_gets_the_scheduler_name(
    resources: object, init: bool, spec: dict[str, str]
) -> None:
    assert patched_scheduler_name(create_review(resources, init=init, **spec)) == "ours"


@pytest.mark.parametrize(
    "body",
    [
        create_review(ONE_GPU, schedulerName="special"),
        create_review(ONE_GPU, nodeName="n"),
        create_review({"limits": {"cpu": "1", "vendor.com/nic": "1"}}),
        create_review({"requests": {"nvidia.com/gpu": "1"}}),
        create_review({}),
        create_review(None),
        review(resource="pods", object={"metadata": {"name": "p"}}),
        review(resource="pods", object=None),
        {
            **create_review(ONE_GPU),
            "request": {**create_review(ONE_GPU)["request"], "operation": "UPDATE"},
        },
        review(),
    ],
)
def test_no_other_object_is_patched(body: dict[str, Any]) -> None:
    assert patched_scheduler_name(body) is None


def test_the_error_for_an_invalid_review_names_the_field() -> None:
    mutate = routes(lambda namespace, name: None, "Fail", "ours")[POD_PATH]
    body = create_review(ONE_GPU)
    body["request"]["object"]["spec"]["containers"] = 1
    with pytest.raises(BadRequestError, match=r"AdmissionReview: .*containers"):
        mutate.handle(json.dumps(body).encode())
