"""Admission webhooks for pods with GPUs: an HTTPS server that decodes an AdmissionReview.

For the Binding of a pod, the webhook reads the pod from the API server, and allows or denies the
Binding. A Binding does not contain its pod, so an admission policy can't select the Bindings of
pods with GPUs. The matchConditions of the configuration exclude the Bindings of accounts that may
bind such pods. Any process that reaches the port can send a review, and would learn from the answer
whether a pod exists and what it requests. So the webhook reads pods only for callers with a client
certificate, and reads none if no CA of these certificates is configured.

The webhook also sets Topolet's scheduler in new pods with GPUs that name no scheduler. This is for
API servers without MutatingAdmissionPolicy; the rule is that of deploy/policies/gpu-scheduler.yaml.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Literal

import msgspec

from agent.host.daemon import Ending
from agent.http import certificates
from agent.http.certificates import CertificateFiles
from agent.http.limits import HANDSHAKES_EACH_SECOND, ConnectionLimits
from agent.http.peers import node_addresses
from agent.http.requests import BadRequestError, Reply, Route, text_reply
from agent.http.server import HttpServer, ServerLimits
from agent.kube import auth
from agent.kube.errors import NotFoundError, StoreError
from agent.kube.objects import pod_path
from agent.kube.transport import ResponseLimits, Transport
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.devices.device_object import GPU
from agent.model.objects import ObjectError
from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import ApiPod
from agent.model.settings.options import SettingsError, with_port
from agent.model.settings.scheduler import WEBHOOK_PORT, WebhookSettings, split_names

log = logging.getLogger(__name__)

PATH: Final = "/admit-binding"
POD_PATH: Final = "/mutate-pod"
_VERSION: Final = "admission.k8s.io/v1"
_KIND: Final = "AdmissionReview"
_DEFAULT_SCHEDULER: Final = "default-scheduler"

# The same as in deploy/policies/gpu-scheduler.yaml.
GPU_PREFIX: Final = GPU
GPU_NAMES: Final = frozenset({"nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu"})

FailurePolicy = Literal["Fail", "Ignore"]
ReadPod = Callable[[str, str], ApiPod | None]
"""Returns the pod by namespace and name, None if it does not exist. Raises PodReadError."""


class ReviewError(ValueError):
    """The body is not an AdmissionReview of v1; the message names the field."""


class PodReadError(RuntimeError):
    """The pod can't be read; the message is the reason."""


class AdmissionStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The API server's answer to the client of a denied request."""

    code: int
    reason: str
    message: str


class AdmissionVerdict(msgspec.Struct, frozen=True):
    """`refusal` is None if the request is allowed; then the client receives `warning`.
    `scheduler`: the schedulerName that the pod gets, empty if it keeps its own."""

    refusal: AdmissionStatus | None = None
    warning: str = ""
    scheduler: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an AdmissionRequest that matter here."""

    uid: str
    operation: str
    resource: _Resource
    user_info: _User
    sub_resource: str = ""
    namespace: str = ""
    name: str = ""
    object: _Object | None = None

    @property
    def creates_pod(self) -> bool:
        resource = self.resource.resource, self.sub_resource
        return (self.operation, self.resource.group, *resource) == ("CREATE", "", "pods", "")

    @property
    def binds(self) -> bool:
        """Whether the request creates the Binding of a pod: pods/binding, or the older bindings."""
        resource = self.resource.resource, self.sub_resource
        return (
            self.operation == "CREATE"
            and self.resource.group == ""
            and resource in (("pods", "binding"), ("bindings", ""))
        )

    @property
    def pod(self) -> str:
        """The name of the pod that is bound."""
        metadata = self.object.metadata if self.object else None
        return self.name or (metadata.name if metadata else "")


def decode(body: bytes) -> AdmissionRequest:
    """Raises ReviewError."""
    try:
        review = bounds.decode(_reviews, body)
    except JsonError as error:
        raise ReviewError(f"AdmissionReview: {error}") from None
    if (review.api_version, review.kind) != (_VERSION, _KIND):
        raise ReviewError(
            f"AdmissionReview: {review.kind[:60]} of {review.api_version[:60]} "
            f"is not {_KIND} of {_VERSION}"
        )
    if not review.request.uid:
        raise ReviewError("AdmissionReview: request.uid is empty")
    if review.request.binds and not (review.request.pod and review.request.namespace):
        raise ReviewError("AdmissionReview: request.name or request.namespace is empty")
    return review.request


def encode(uid: str, verdict: AdmissionVerdict) -> bytes:
    """The AdmissionReview that answers the request with this uid."""
    response = _Response(
        uid,
        verdict.refusal is None,
        verdict.refusal,
        (verdict.warning,) if verdict.warning else (),
    )
    if verdict.scheduler:
        change = {"op": "add", "path": "/spec/schedulerName", "value": verdict.scheduler}
        patch = base64.b64encode(msgspec.json.encode([change])).decode()
        response = msgspec.structs.replace(response, patch=patch, patch_type="JSONPatch")
    return msgspec.json.encode(_Answer(response))


def scheduler_verdict(request: AdmissionRequest, scheduler: str) -> AdmissionVerdict:
    """Sets the scheduler of a new pod that names a GPU but neither a scheduler nor a node."""
    spec = request.object.spec if request.object else None
    if not request.creates_pod or spec is None or spec.node_name:
        return AdmissionVerdict()
    if spec.scheduler_name not in ("", _DEFAULT_SCHEDULER):
        return AdmissionVerdict()
    return AdmissionVerdict(scheduler=scheduler if spec.names_gpus else "")


def binding_verdict(
    request: AdmissionRequest, read_pod: ReadPod | None, on_failure: FailurePolicy
) -> AdmissionVerdict:
    """Denies the Binding of a pod that requests GPUs.

    `on_failure` applies if the pod can't be read, or if there is no `read_pod`. A pod that does not
    exist is denied too, since it may be created a moment later.
    """
    user = request.user_info.username
    if not request.binds:
        return AdmissionVerdict()
    title = f"{request.namespace}/{request.pod}"
    if read_pod is None:
        if on_failure == "Ignore":
            return AdmissionVerdict(warning=f"pod {title} was not read before it was bound")
        message = (
            f"{user} may not bind pod {title}: only configured accounts may, since the webhook "
            "reads no pods without client-ca-file"
        )
        return AdmissionVerdict(AdmissionStatus(403, "Forbidden", message))
    try:
        pod = read_pod(request.namespace, request.pod)
    except PodReadError as error:
        if on_failure == "Ignore":
            return AdmissionVerdict(warning=f"pod {title} could not be read before it was bound")
        message = f"{user} may not bind pod {title}, which could not be read: {error}"
        return AdmissionVerdict(AdmissionStatus(503, "ServiceUnavailable", message))
    if pod is None:
        return AdmissionVerdict(AdmissionStatus(404, "NotFound", f"pod {title} does not exist"))
    if requested := gpus(pod):
        message = (
            f"{user} may not bind pod {title}, which requests {', '.join(requested)}: "
            "only configured accounts may bind pods with GPUs"
        )
        return AdmissionVerdict(AdmissionStatus(403, "Forbidden", message))
    return AdmissionVerdict()


def gpus(pod: ApiPod) -> list[str]:
    """The names of the GPU resources that the pod requests, sorted."""
    names = {
        name
        for each in (*pod.containers, *pod.init_containers)
        for amounts in (each.requests, each.limits)
        for name, amount in amounts.items()
        if amount > 0
    }
    return sorted(each for each in names if each in GPU_NAMES or each.startswith(GPU_PREFIX))


class _Amounts(msgspec.Struct, frozen=True):
    limits: dict[str, object] | None = None
    requests: dict[str, object] | None = None

    @property
    def names_gpus(self) -> bool:
        """The rule of the policy, which also counts amounts of 0. A resource of GPU_NAMES has a
        limit wherever it has a request, since the API server requires both to be equal."""
        limits, requests = self.limits or {}, self.requests or {}
        return bool(GPU_NAMES & limits.keys()) or any(
            name.startswith(GPU_PREFIX) for name in (*limits, *requests)
        )


class _Container(msgspec.Struct, frozen=True):
    resources: _Amounts | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None

    @property
    def names_gpus(self) -> bool:
        containers = (*(self.containers or ()), *(self.init_containers or ()))
        return any(each.resources is not None and each.resources.names_gpus for each in containers)


class _Resource(msgspec.Struct, frozen=True):
    resource: str
    group: str = ""


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    """A pod that is created may have no name yet."""

    name: str = ""


class _Object(msgspec.Struct, frozen=True):
    """A Binding, or a pod that is created."""

    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    request: AdmissionRequest
    api_version: str = ""
    kind: str = ""


class _Response(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    uid: str
    allowed: bool
    status: AdmissionStatus | None = None
    warnings: tuple[str, ...] = ()
    patch: str = ""
    patch_type: str = ""


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    response: _Response
    api_version: str = _VERSION
    kind: str = _KIND


_reviews: Final = msgspec.json.Decoder(_Review)

# Shorter than the API server's timeoutSeconds, so that it receives a reason.
READ_LIMITS: Final = ResponseLimits(connect_seconds=2.0, read_seconds=4.0, whole_seconds=4.0)
# The API servers have few addresses. A review has a pod, of at most 3 MiB in the API server.
LIMITS: Final = ServerLimits(
    ConnectionLimits(
        connections=256,
        reserved=32,
        each_peer=96,
        new_each_second=HANDSHAKES_EACH_SECOND,
        idle_seconds=120.0,
        head_bytes=16 << 10,
        body_bytes=4 << 20,
        bodies_bytes=24 << 20,
    ),
    threads=16,
)


def pods(transport: Transport) -> ReadPod:
    """Reads each pod from the API server, since a cache of pods may be older than the Binding."""

    def read_pod(namespace: str, name: str) -> ApiPod | None:
        try:
            return apiobjects.decode(transport.get(pod_path(namespace, name)))
        except NotFoundError:
            return None
        except (StoreError, ObjectError) as error:
            raise PodReadError(str(error)) from error

    return read_pod


def routes(read_pod: ReadPod | None, on_failure: FailurePolicy, scheduler: str) -> dict[str, Route]:
    """The routes of the webhook, by path. With `read_pod`, only a client with a certificate may
    send Bindings. `scheduler`: the schedulerName of pods with GPUs."""

    def reviewed(body: bytes) -> AdmissionRequest:
        try:
            return decode(body)
        except ReviewError as error:
            raise BadRequestError(str(error)) from error

    def mutate(body: bytes) -> Reply:
        request = reviewed(body)
        return Reply(200, encode(request.uid, scheduler_verdict(request, scheduler)))

    def admit(body: bytes) -> Reply:
        request = reviewed(body)
        verdict = binding_verdict(request, read_pod, on_failure)
        if verdict.refusal is not None:
            log.info("refused: %s", verdict.refusal.message)
        elif verdict.warning:
            log.warning("%s", verdict.warning)
        return Reply(200, encode(request.uid, verdict))

    return {
        PATH: Route("POST", admit, certified=read_pod is not None),
        POD_PATH: Route("POST", mutate),
        "/healthz": Route("GET", lambda _: text_reply(200, "ok")),
    }


def run(settings: WebhookSettings) -> None:
    """Runs until SIGTERM. Raises AccessError, CertificateError, HttpListenError and
    SettingsError."""
    if settings.client_names and not settings.client_ca_file:
        raise SettingsError("client-names: requires client-ca-file")
    node = node_addresses(settings.node_addresses)
    access = auth.access(settings.kubeconfig)
    # The kubelet's probes and new pods come without a certificate.
    files = certificates.in_folder(settings.tls_dir)
    certificate = CertificateFiles(*files, settings.client_ca_file, client_optional=True)
    with ExitStack() as closing:
        read_pod = None
        if settings.client_ca_file:
            transport = Transport(
                access,
                user_agent="topolet-webhook",
                limits=READ_LIMITS,
                connections=LIMITS.threads,
            )
            closing.callback(transport.close)
            read_pod = pods(transport)
        else:
            log.warning("without client-ca-file the webhook reads no pods (docs/webhook.md)")
        answers = routes(read_pod, settings.webhook_failure_policy, settings.scheduler_name)
        names = split_names(settings.client_names)
        address = with_port(settings.https, WEBHOOK_PORT)
        served = HttpServer(address, answers, LIMITS, node, certificate, names)
        ended = threading.Event()
        with Ending(ended.set):
            served.start()
            log.info("webhook listens on port %d", served.port)
            ended.wait()
            served.close()
