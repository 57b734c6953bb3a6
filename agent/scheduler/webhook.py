"""Runs the admission webhook: reads pods from the API server, and serves HTTPS."""

from __future__ import annotations

import logging
import threading
from typing import Final

from agent.host.ending import Ending
from agent.kube import auth
from agent.kube.answers import ResponseLimits
from agent.kube.errors import NotFoundError, StoreError
from agent.kube.kinds import pod_path
from agent.kube.transport import Transport
from agent.model import apiobjects
from agent.model.apiobjects import ApiPod
from agent.model.objects import ObjectError
from agent.model.settings import Settings
from agent.scheduler import admission, server
from agent.scheduler.admission import FailurePolicy, LookUp, LookUpError, ReviewError
from agent.scheduler.certificates import CertificateFiles
from agent.scheduler.http_routes import TEXT, BadRequestError, Reply, Route
from agent.scheduler.server import Server

log = logging.getLogger(__name__)

PATH: Final = "/admit-binding"

# Shorter than the API server's timeoutSeconds, so that it receives a reason.
LOOK_UP_LIMITS: Final = ResponseLimits(connect_seconds=2.0, read_seconds=4.0, whole_seconds=4.0)


def pods(transport: Transport) -> LookUp:
    """Reads each pod from the API server, since a cache of pods may be older than the Binding."""

    def look_up(namespace: str, name: str) -> ApiPod | None:
        try:
            return apiobjects.decode(transport.get(pod_path(namespace, name)))
        except NotFoundError:
            return None
        except (StoreError, ObjectError) as error:
            raise LookUpError(str(error)) from error

    return look_up


def routes(look_up: LookUp, on_failure: FailurePolicy) -> dict[str, Route]:
    """The routes of the webhook, by path."""

    def admit(body: bytes) -> Reply:
        try:
            request = admission.decode(body)
        except ReviewError as error:
            raise BadRequestError(str(error)) from error
        verdict = admission.judge(request, look_up, on_failure)
        if verdict.refusal is not None:
            log.info("refused: %s", verdict.refusal.message)
        elif verdict.warning:
            log.warning("%s", verdict.warning)
        return Reply(200, admission.encode(request.uid, verdict))

    return {
        PATH: Route("POST", admit),
        "/healthz": Route("GET", lambda _: Reply(200, b"ok\n", TEXT)),
    }


def run(settings: Settings) -> None:
    """Runs until SIGTERM. Raises AccessError, CertificateError, ServerError and SettingsError."""
    access = auth.access(settings.kubeconfig, settings.service_account_dir)
    limits = server.ServerLimits()
    transport = Transport(
        access,
        user_agent="topolet-webhook",
        limits=LOOK_UP_LIMITS,
        connections=limits.threads,
    )
    answers = routes(pods(transport), settings.webhook_failure_policy)
    certificate = CertificateFiles(settings.tls_certificate_file, settings.tls_key_file)
    webhook_server = Server(settings.webhook_https, answers, certificate, limits)
    ended = threading.Event()
    with Ending(ended.set):
        webhook_server.start()
        log.info("webhook listens on port %d", webhook_server.port)
        ended.wait()
        webhook_server.close()
    transport.close()
