"""What people and controllers use beside an API server: kubectl, and controllers of Kubernetes."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tools
from tests.integration.apiserver import certificates
from tests.integration.apiserver.server import ApiServer

_KUBECTL_SECONDS = 300


def kubeconfig(server: ApiServer) -> Path:
    """The administrator's."""
    path = server.folder / "admin.kubeconfig"
    path.write_text(json.dumps(certificates.kubeconfig(server.url, server.folder, "admin")))
    return path


class Kubectl:
    """kubectl of the version of the server, as the administrator."""

    def __init__(self, server: ApiServer) -> None:
        """The test is skipped where there is no kubectl."""
        self._words = (str(program_or_skip("kubectl")), f"--kubeconfig={kubeconfig(server)}")
        # Its cache of served kinds belongs to this server.
        self._environment = {"HOME": str(server.folder), "PATH": "/usr/bin:/bin"}

    def __call__(self, *words: str) -> str:
        """What it prints; fails where it does."""
        ended = self.attempt(*words)
        assert ended.returncode == 0, f"kubectl {' '.join(words)}: {ended.stderr}"
        return ended.stdout

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs it, with any exit code."""
        return subprocess.run(
            [*self._words, *words],
            capture_output=True,
            check=False,
            env=self._environment,
            text=True,
            timeout=_KUBECTL_SECONDS,
        )


@contextlib.contextmanager
def controllers(server: ApiServer, *names: str) -> Iterator[None]:
    """kube-controller-manager with these controllers; the test is skipped where there is none."""
    program = program_or_skip("kube-controller-manager")
    with (server.folder / "kube-controller-manager.log").open("ab") as log:
        process = subprocess.Popen(
            [
                str(program),
                f"--kubeconfig={kubeconfig(server)}",
                f"--controllers={','.join(names)}",
                "--leader-elect=false",
                "--secure-port=0",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def program_or_skip(name: str) -> Path:
    """A program of Kubernetes."""
    program = tools.kubernetes(name)
    if isinstance(program, str):
        pytest.skip(program)
    return program
