from __future__ import annotations

import base64
import json
import logging
import sys
from pathlib import Path

import msgspec
import pytest

from agent.kube import auth
from agent.kube.auth import AccessError, FileAccess, KubeconfigAccess
from tests.integration.apiserver.certificates import Authority


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
def test_in_cluster(tmp_path: Path, host: str, server: str) -> None:
    folder = tmp_path / "service-account"
    folder.mkdir(parents=True)
    Authority(folder)
    (folder / "token").write_text("t")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    access = auth.in_cluster(str(folder), environ)
    assert access.server == server
    assert access.headers() == {"Authorization": "Bearer t"}
    assert access.tls() is not None


@pytest.mark.parametrize("environ", [{}, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}])
def test_outside_of_a_cluster(environ: dict[str, str]) -> None:
    with pytest.raises(AccessError, match="KUBERNETES_SERVICE_HOST"):
        auth.in_cluster("", environ)


def test_tls_context_is_cached_until_its_files_change(tmp_path: Path) -> None:
    Authority(tmp_path).client("me")
    files = {
        "ca": str(tmp_path / "ca.crt"),
        "certificate": str(tmp_path / "me.crt"),
        "key": str(tmp_path / "me.key"),
    }
    access = FileAccess("https://x", **files)
    first = access.tls()
    assert access.tls() is first
    Authority(tmp_path)
    second = access.tls()
    assert second is not first
    (tmp_path / "ca.crt").write_text("incomplete")
    assert access.tls() is second, "the last valid context"


@pytest.mark.parametrize("broken", ["ca.crt", "me.crt", "me.key"])
@pytest.mark.parametrize("how", ["absent", "no certificate"])
def test_invalid_file_is_named(tmp_path: Path, broken: str, how: str) -> None:
    Authority(tmp_path).client("me")
    if how == "absent":
        (tmp_path / broken).unlink()
    else:
        (tmp_path / broken).write_text("?")
    access = FileAccess(
        "https://x",
        ca=str(tmp_path / "ca.crt"),
        certificate=str(tmp_path / "me.crt"),
        key=str(tmp_path / "me.key"),
    )
    with pytest.raises(AccessError, match=broken):
        access.tls()


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"current-context": "x"}'])
def test_invalid_kubeconfig_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AccessError, match=str(path)):
        KubeconfigAccess(str(path))


@pytest.mark.parametrize(
    "value", ["*s3cr3t", "!s3cr3t", "'s3cr3t", "s3cr3t: s3cr3t", "%s3cr3t", "&s3cr3t *s3cr3t"]
)
def test_no_secret_of_an_invalid_kubeconfig_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """A password that YAML reads as an alias, a tag or an unterminated string."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "config"
    path.write_text(f"users:\n- name: u\n  user:\n    password: {value}\n")
    with pytest.raises(AccessError, match=str(path)) as refused:
        KubeconfigAccess(str(path))
    assert "s3cr3t" not in f"{refused.value} {caplog.text}"


@pytest.mark.parametrize("content", ["s3cr3t-token\ns3cr3t", "s3cr3t-\u00e9"])
def test_no_part_of_an_invalid_credential_is_in_the_error(tmp_path: Path, content: str) -> None:
    Authority(tmp_path).client("me")
    (tmp_path / "token").write_text(content)
    with pytest.raises(AccessError, match="token") as refused:
        FileAccess("https://x", token=str(tmp_path / "token")).headers()
    assert "s3cr3t" not in str(refused.value)
    key = (tmp_path / "me.key").read_text().splitlines()
    (tmp_path / "me.key").write_text("\n".join([key[0], "s3cr3t", *key[2:]]))
    certificate = str(tmp_path / "me.crt")
    with pytest.raises(AccessError, match=r"me\.key") as refused:
        FileAccess("https://x", certificate=certificate, key=str(tmp_path / "me.key")).tls()
    assert not any(line in str(refused.value) for line in ("s3cr3t", *key[2:-1]))


def test_without_the_kubernetes_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    with pytest.raises(AccessError, match=r"topolet-.*whl\[kubeconfig\]"):
        KubeconfigAccess(str(tmp_path / "config"))


def test_kubeconfig_with_a_token(tmp_path: Path) -> None:
    Authority(tmp_path)
    cluster = {"server": "https://x:1/", "certificate-authority": str(tmp_path / "ca.crt")}
    path = tmp_path / "config"
    path.write_bytes(
        msgspec.json.encode(
            {
                "clusters": [{"name": "c", "cluster": {**cluster, "tls-server-name": "y"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    access = KubeconfigAccess(str(path))
    assert (access.server, access.server_name) == ("https://x:1", "y")
    assert access.headers() == {"Authorization": "Bearer t"}
    assert access.tls() is access.tls() is not None


def test_the_pod_of_a_token_is_that_for_which_the_kubelet_requested_it(tmp_path: Path) -> None:
    claims = {"kubernetes.io": {"namespace": "ns", "pod": {"name": "p-1", "uid": "u"}}}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    (tmp_path / "token").write_text(f"e30.{payload}.c2ln")
    assert auth.own_pod(str(tmp_path)) == ("ns", "p-1")


@pytest.mark.parametrize("token", ["", "token", "a.!.c", "e30.e30.c2ln", "e30.bnVsbA.c2ln"])
def test_other_tokens_name_no_pod(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    assert auth.own_pod(str(tmp_path)) is None
    assert auth.own_pod(str(tmp_path / "token")) is None, "a file is a kubeconfig"
