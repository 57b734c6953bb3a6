"""kubectl and kube-controller-manager for the API server of tests."""

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
    """Writes the kubeconfig of the administrator. Returns its path."""
    path = server.folder / "admin.kubeconfig"
    path.write_text(json.dumps(certificates.kubeconfig(server.url, server.folder, "admin")))
    return path


class Kubectl:
    """kubectl in the version of the server, with the rights of the administrator."""

    def __init__(self, server: ApiServer) -> None:
        """Skips the test if kubectl is not available."""
        self._command = (str(program_or_skip("kubectl")), f"--kubeconfig={kubeconfig(server)}")
        # HOME contains the discovery cache, which is valid for this server only.
        self._environment = {"HOME": str(server.folder), "PATH": "/usr/bin:/bin"}

    def __call__(self, *words: str) -> str:
        """Returns the output. Fails if kubectl fails."""
        result = self.attempt(*words)
        assert result.returncode == 0, f"kubectl {' '.join(words)}: {result.stderr}"
        return result.stdout

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Returns the result of kubectl, which may have failed."""
        return subprocess.run(
            [*self._command, *words],
            capture_output=True,
            check=False,
            env=self._environment,
            text=True,
            timeout=_KUBECTL_SECONDS,
        )


@contextlib.contextmanager
def controllers(server: ApiServer, *names: str) -> Iterator[None]:
    """Runs these controllers of kube-controller-manager, or skips the test if it is unavailable."""
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
    """The path of a Kubernetes program. Skips the test if it is not available."""
    program = tools.kubernetes(name)
    if isinstance(program, str):
        pytest.skip(program)
    return program
