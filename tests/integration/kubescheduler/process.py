"""A kube-scheduler process."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import tools
from tests.fixtures.ports import free_port
from tests.integration.apiserver.certificates import kubeconfig
from tests.integration.apiserver.server import START_SECONDS, ApiServer
from tests.waiting import eventually

USER = "system:kube-scheduler"
"""The user that the default roles of the API server allow to schedule."""

_numbers = itertools.count(1)


def configuration(profile: str, extender: str, kubeconfig: str) -> dict[str, Any]:
    """A KubeSchedulerConfiguration with one profile and the extender at this URL."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 1000, "burst": 2000},
        "profiles": [{"schedulerName": profile}],
        "extenders": [
            {
                "urlPrefix": extender,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 1,
                "nodeCacheCapable": True,
                "httpTimeout": "5s",
            }
        ],
    }


class KubeScheduler:
    """A process, which is ready when it is created. `log`: its output so far."""

    def __init__(self, program: Path, configuration: Mapping[str, Any], folder: Path) -> None:
        number = next(_numbers)
        self._port = free_port()
        self._log = folder / f"kube-scheduler-{number}.log"
        settings = folder / f"kube-scheduler-{number}.json"
        settings.write_text(json.dumps(configuration))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(program),
                    f"--config={settings}",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={self._port}",
                    f"--cert-dir={folder}",
                    "--v=3",
                ],
                stdout=log,
                stderr=log,
            )
        with contextlib.ExitStack() as unless_ready:
            unless_ready.callback(self.stop)
            eventually("kube-scheduler is ready", self._ready, START_SECONDS)
            unless_ready.pop_all()

    def _ready(self) -> bool:
        """Whether it has read the objects of the cluster."""
        self.alive()
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(
                f"https://127.0.0.1:{self._port}/readyz", timeout=5, context=unverified
            ),
        ):
            return True
        time.sleep(0.05)
        return False

    @property
    def log(self) -> str:
        return self._log.read_text()

    def alive(self) -> bool:
        """Fails with the log if the process has ended."""
        assert self._process.poll() is None, self.log[-3000:]
        return True

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def program_or_skip() -> Path:
    program = tools.kubernetes("kube-scheduler")
    if isinstance(program, str):
        pytest.skip(program)
    return program


def credentials(api: ApiServer) -> Path:
    """The path of a kubeconfig of USER."""
    path = api.folder / "kube-scheduler.kubeconfig"
    if not path.exists():
        api.authority.client(USER)
        path.write_text(json.dumps(kubeconfig(api.url, api.folder, USER)))
    return path


@contextlib.contextmanager
def scheduling(
    api: ApiServer, settings: Mapping[str, Any], folder: Path
) -> Iterator[KubeScheduler]:
    """Runs kube-scheduler with this configuration. Skips the test if it is not available."""
    scheduler = KubeScheduler(program_or_skip(), settings, folder)
    try:
        yield scheduler
    finally:
        scheduler.stop()
