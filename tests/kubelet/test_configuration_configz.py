"""/configz, from an HTTPS server that acts as the kubelet."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from agent.kubelet import configuration
from agent.kubelet.configuration import ConfigurationError


class FakeKubelet(http.server.BaseHTTPRequestHandler):
    answer = json.dumps({"kubeletconfig": {"cpuManagerPolicy": "static"}}).encode()
    tokens: ClassVar[list[str | None]] = []
    """The Authorization header of each request."""

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        if self.path != "/configz":
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
            return
        if self.headers["Authorization"] != "Bearer secret":
            self.send_error(401)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return new_certificate(tmp_path_factory.mktemp("certificate"))


def new_certificate(folder: Path, name: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    key, crt = folder / "key", folder / "crt"
    subject = ["-subj", "/CN=node", "-addext", f"subjectAltName={name}"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", crt], check=True, capture_output=True)
    return key, crt


@pytest.fixture
def url(certificate: tuple[Path, Path]) -> Iterator[str]:
    FakeKubelet.tokens.clear()
    with serving(*certificate) as url:
        yield url


@contextlib.contextmanager
def serving(key: Path, crt: Path) -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), FakeKubelet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/configz"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return str(path)


def pki(kubelet_dir: Path, name: str, content: bytes) -> str:
    (kubelet_dir / "pki").mkdir(exist_ok=True)
    (kubelet_dir / "pki" / name).write_bytes(content)
    return str(kubelet_dir)


def test_configz_is_read_with_a_named_ca(
    url: str, token: str, certificate: tuple[Path, Path]
) -> None:
    kubelet = configuration.read_configz(url, token, str(certificate[1]), "/none")
    assert kubelet is not None
    assert (kubelet.cpu_manager_policy, kubelet.source) == ("static", url)


@pytest.mark.parametrize("rotated", [False, True], ids=["own", "signed-by-the-api-server"])
def test_configz_is_read_from_the_kubelet_whose_certificate_is_in_its_folder(
    token: str, tmp_path: Path, rotated: bool
) -> None:
    """A self-signed certificate has only the name of the host. A rotated certificate is a link to a
    path of the host, and its file has the key too."""
    key, crt = new_certificate(tmp_path, "DNS:node")
    if rotated:
        folder = pki(tmp_path, "kubelet-server-1.pem", key.read_bytes() + crt.read_bytes())
        link = tmp_path / "pki/kubelet-server-current.pem"
        link.symlink_to("/var/lib/kubelet/pki/kubelet-server-1.pem")
    else:
        folder = pki(tmp_path, "kubelet.crt", crt.read_bytes())
    with serving(key, crt) as url:
        assert configuration.read_configz(url, token, "", folder) is not None


def test_no_server_without_the_kubelets_certificate_gets_the_token(
    url: str, token: str, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    """Only the first certificate of the file counts: the others are those of signers."""
    with pytest.raises(ConfigurationError, match="no token is sent: no kubelet-ca-file is named"):
        configuration.read_configz(url, token, "", str(tmp_path))
    both = new_certificate(tmp_path)[1].read_bytes() + certificate[1].read_bytes()
    with pytest.raises(ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
        configuration.read_configz(url, token, "", pki(tmp_path, "kubelet.crt", both))
    with pytest.raises(ConfigurationError, match="has no certificate"):
        configuration.read_configz(url, token, "", pki(tmp_path, "kubelet.crt", b""))
    assert FakeKubelet.tokens == []


def test_a_token_is_sent_neither_in_plain_text_nor_after_a_redirect(
    url: str, token: str, certificate: tuple[Path, Path]
) -> None:
    with pytest.raises(ConfigurationError, match="is sent by https only"):
        configuration.read_configz(url.replace("https:", "http:"), token, "", "/none")
    redirected = url.replace("/configz", f"/to/{url}")
    with pytest.raises(ConfigurationError, match="302"):
        configuration.read_configz(redirected, token, str(certificate[1]), "/none")
    assert FakeKubelet.tokens == ["Bearer secret"]


def test_errors_name_the_address(
    url: str, token: str, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    other_ca = tmp_path / "ca"
    other_ca.write_text("")
    with pytest.raises(ConfigurationError, match="401"):
        configuration.read_configz(url, "", str(certificate[1]), "/none")
    with pytest.raises(ConfigurationError, match="configz: "):
        configuration.read_configz(url, token, str(other_ca), "/none")
    with pytest.raises(ConfigurationError, match="No such file"):
        configuration.read_configz(url, str(tmp_path / "none"), "", "/none")


def test_no_answer_before_the_kubelet_is_up(token: str, certificate: tuple[Path, Path]) -> None:
    address, ca = "https://127.0.0.1:1/configz", str(certificate[1])
    assert configuration.read_configz(address, token, ca, "/none") is None


@pytest.mark.parametrize("invalid", ["", "{", "[]", '{"kubeletconfig": {"cpuManagerPolicy": 3}}'])
def test_an_invalid_answer_is_an_error(tmp_path: Path, invalid: str) -> None:
    answer = tmp_path / "configz"
    answer.write_text(invalid)
    with pytest.raises(ConfigurationError, match="configz"):
        configuration.read_configz(f"file://{answer}", "", "", "/none")


def test_an_answer_that_is_not_http_is_named(certificate: tuple[Path, Path]) -> None:
    ca = str(certificate[1])
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/configz"

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConfigurationError, match=address):
            configuration.read_configz(address, "", "", "/none")
        thread.join()
    with pytest.raises(ConfigurationError, match="port"):
        configuration.read_configz("https://node:10250x/configz", "", ca, "/none")
