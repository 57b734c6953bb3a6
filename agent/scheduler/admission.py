"""The webhook as a process: pods from the API server, accounts from a file, answers over HTTPS."""

from __future__ import annotations

import logging
import threading
from typing import Final

from agent.host.ending import Ending
from agent.host.files import Stamp, stamp
from agent.kube import auth
from agent.kube.answers import Limits
from agent.kube.errors import NotFoundError, StoreError
from agent.kube.kinds import pod_path
from agent.kube.transport import Transport
from agent.model import apipods
from agent.model.apipods import ApiPod
from agent.model.objects import ObjectError
from agent.model.settings import Settings
from agent.scheduler import server, webhook
from agent.scheduler.certificates import CertificateFiles
from agent.scheduler.errors import StartError
from agent.scheduler.routes import TEXT, BadRequestError, Reply, Route
from agent.scheduler.server import Server
from agent.scheduler.webhook import FailurePolicy, LookUp, LookUpError, ReviewError

log = logging.getLogger(__name__)

PATH: Final = "/admit-binding"

# Shorter than the API server waits for us (timeoutSeconds: 10): it hears a reason then.
LOOK_UP_LIMITS: Final = Limits(connect_seconds=2.0, read_seconds=4.0, whole_seconds=4.0)


class AccountsError(StartError):
    """The file of accounts can't be read; the message names it."""


class Accounts:
    """User names in a file, one a line, read again when it changes. A file that is away for a
    moment leaves the last names in force."""

    def __init__(self, path: str) -> None:
        """Raises AccountsError."""
        self._path = path
        self._stamp: Stamp = stamp(path)
        self._names = self._read()

    def names(self) -> frozenset[str]:
        """The same set while the file is the same."""
        now = stamp(self._path)
        if now != self._stamp:
            self._stamp = now
            try:
                self._names = self._read()
            except AccountsError as error:
                log.warning("the last accounts stay in force: %s", error)
            else:
                log.info("%s was replaced: %s", self._path, ", ".join(sorted(self._names)))
        return self._names

    def _read(self) -> frozenset[str]:
        try:
            with open(self._path, encoding="utf-8") as file:
                return frozenset(line.strip() for line in file if line.strip())
        except (OSError, UnicodeDecodeError) as error:
            raise AccountsError(f"accounts {self._path}: {error}") from error


def pods(transport: Transport) -> LookUp:
    """Every look asks the API server: no memory of pods could be as new as the Binding."""

    def look_up(namespace: str, name: str) -> ApiPod | None:
        try:
            return apipods.decode(transport.get(pod_path(namespace, name)))
        except NotFoundError:
            return None
        except (StoreError, ObjectError) as error:
            raise LookUpError(str(error)) from error

    return look_up


def routes(accounts: Accounts, look_up: LookUp, on_failure: FailurePolicy) -> dict[str, Route]:
    """What the webhook answers, by path."""

    def admit(body: bytes) -> Reply:
        try:
            request = webhook.decode(body)
        except ReviewError as error:
            raise BadRequestError(str(error)) from error
        verdict = webhook.judge(request, accounts.names(), look_up, on_failure)
        if verdict.refusal is not None:
            log.info("refused: %s", verdict.refusal.message)
        elif verdict.warning:
            log.warning("%s", verdict.warning)
        return Reply(200, webhook.encode(request.uid, verdict))

    return {
        PATH: Route("POST", admit),
        "/healthz": Route("GET", lambda _: Reply(200, b"ok\n", TEXT)),
    }


def run(settings: Settings) -> None:
    """Until SIGTERM. Raises AccessError, AccountsError, CertificateError, ServerError and
    SettingsError."""
    access = auth.access(settings.kubeconfig, settings.service_account_dir)
    limits = server.Limits()
    transport = Transport(
        access,
        user_agent="topolet-webhook",
        limits=LOOK_UP_LIMITS,
        connections=limits.threads,
    )
    answers = routes(
        Accounts(settings.binders_file), pods(transport), settings.webhook_failure_policy
    )
    certificate = CertificateFiles(settings.tls_certificate_file, settings.tls_key_file)
    door = Server(settings.webhook_https, answers, certificate, limits)
    ended = threading.Event()
    with Ending(ended.set):
        door.start()
        log.info("webhook listens on port %d", door.port)
        ended.wait()
        door.close()
    transport.close()
