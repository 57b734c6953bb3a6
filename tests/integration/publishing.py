"""The script by which the workflow of releases publishes and signs, and the commands by which
docs/release.md verifies, as they stand in these files.

A registry of this machine stands in for GitHub's, and a key for the identity of the workflow:
neither Fulcio, which makes the certificate of an identity, nor the log of Rekor can be reached.
cosign reads the values of its flags from the environment, so no command of the workflow changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from deploy import release
from deploy.release import ROOT
from tests import tools
from tests.integration import registry
from tests.integration.apiserver.certificates import Authority
from tests.integration.harness import built_or_skip

WORKFLOW = ROOT / ".github/workflows/release.yaml"
_ACTOR, _TOKEN = "actor", "token"
_HTPASSWD = f"{_ACTOR}:$2b$04$NKSn1somvNMWPuyX6RatGOLiesb1RFsLoV5G8ojUFSJo08x3AEHsK\n"
"""The actor with the bcrypt hash of the token."""
_NO_AUTHORITY = '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}'
_IDENTITY = re.compile(r"\s+--certificate-identity \$identity --certificate-oidc-issuer \$issuer")
_SECONDS = 300.0


def documented() -> list[str]:
    """The commands of docs/release.md that verify a release, except that of gh, which asks
    GitHub."""
    text = (ROOT / "docs/release.md").read_text()
    block = re.search(r"\n## Verify\n+```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    lines = block[1].replace("\\\n", "").splitlines()
    return [line for line in lines if line.startswith(("cosign ", "sha256sum "))]


class Publication:
    """A published release: its image and its chart in a registry, and the files of its page below
    `page`."""

    def __init__(self, folder: Path, helm: str) -> None:
        self.page = folder / "page"
        self._folder = folder
        self._helm = built_or_skip(helm)
        skopeo = tools.unpacked("skopeo")
        if skopeo is None:
            pytest.skip("no skopeo here (tests/tools/prepare fetches it)")
        self._skopeo = Path(skopeo).parent
        self.outputs: dict[str, str] = {}
        """What the script gives to the workflow's later steps."""

    def publish(self, address: str, dist: Path) -> None:
        """Runs the script of the workflow, with the files of the release in `dist`."""
        self.generate_key("signer")
        workspace = self._folder / "workspace"
        shutil.copytree(dist, workspace / "dist")
        steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["publish"]["steps"]
        (script,) = (step["run"] for step in steps if step.get("id") == "publish")
        assert "cosign login ghcr.io " in script
        output = self._folder / "output"
        self._run(
            script.replace("cosign login ghcr.io ", f"cosign login {address} "),
            workspace,
            "cosign",
            {
                "COSIGN_KEY": str(self._folder / "signer.key"),
                "COSIGN_TLOG_UPLOAD": "false",
                "GITHUB_ACTOR": _ACTOR,
                "GITHUB_OUTPUT": str(output),
                "GITHUB_TOKEN": _TOKEN,
                "REGISTRY": f"{address}/owner",
                "VERSION": release.version(),
            },
        ).check_returncode()
        pairs = (line.partition("=") for line in output.read_text().splitlines())
        self.outputs = {name: value for name, _, value in pairs}
        shutil.copytree(workspace / "dist", self.page)
        shutil.copy(workspace / "SHA256SUMS.sigstore.json", self.page)

    def verify(
        self, command: str, cosign: str, *, tag: str | None = None, key: str = "signer"
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of the document where the files of the release's page lie. `tag`: that of
        the image in place of the version. `key`: whose public key cosign gets in place of an
        identity."""
        if command.startswith("cosign "):
            command, count = _IDENTITY.subn("", command)
            assert count == 1, command
        number = release.version()
        command = command.replace("ghcr.io/OWNER", self.outputs["registry"])
        command = command.replace(":0.1.0", f":{tag or number}").replace("0.1.0", number)
        (self._folder / "trusted-root.json").write_text(_NO_AUTHORITY)
        return self._run(
            command,
            self.page,
            cosign,
            {
                "COSIGN_INSECURE_IGNORE_TLOG": "true",
                "COSIGN_KEY": str(self._folder / f"{key}.pub"),
                "COSIGN_TRUSTED_ROOT": str(self._folder / "trusted-root.json"),
            },
        )

    def generate_key(self, name: str) -> None:
        command = f"cosign generate-key-pair --output-key-prefix {name}"
        self._run(command, self._folder, "cosign", {}).check_returncode()

    def push_other(self, tag: str) -> None:
        """Pushes the image of this machine in another format, so with another digest."""
        image = f"docker://{self.outputs['registry']}/topolet"
        command = f"skopeo copy --format=v2s2 {image}:{release.version()} {image}:{tag}"
        self._run(command, self._folder, "cosign", {}).check_returncode()

    def _run(
        self, script: str, folder: Path, cosign: str, variables: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script as GitHub does, with the programs of the set `cosign`."""
        folders = (built_or_skip(cosign), self._helm, self._skopeo, os.environ["PATH"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=folder,
            env={
                "COSIGN_PASSWORD": "",
                "HOME": str(self._folder),
                "PATH": ":".join(map(str, folders)),
                "SSL_CERT_FILE": str(self._folder / "ca.crt"),
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        print(f"{script}\n{done.stdout}{done.stderr}")
        return done


@contextlib.contextmanager
def published(folder: Path, helm: str, dist: Path) -> Iterator[Publication]:
    """The release in `dist`, published by the workflow's script with Helm of the set `helm`. Skips
    the test without one of the programs."""
    authority = Authority(folder)
    authority.server("registry")
    (folder / "htpasswd").write_text(_HTPASSWD)
    files = {"certificate": str(folder / "registry.crt"), "key": str(folder / "registry.key")}
    auth = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
    publication = Publication(folder, helm)
    with registry.running(folder, {"tls": files}, auth=auth) as images:
        publication.publish(images.address, dist)
        yield publication
