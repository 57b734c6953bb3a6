"""A real HTTPS server that acts as the kubelet."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kubelet import configuration
from agent.kubelet.configuration import ConfigurationError


class Kubelet(http.server.BaseHTTPRequestHandler):
    answer = json.dumps({"kubeletconfig": {"cpuManagerPolicy": "static"}}).encode()

    def do_GET(self) -> None:
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
    folder = tmp_path_factory.mktemp("certificate")
    key, crt = folder / "key", folder / "crt"
    subject = ["-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", crt], check=True, capture_output=True)
    return key, crt


@pytest.fixture
def url(certificate: tuple[Path, Path]) -> Iterator[str]:
    key, crt = certificate
    server = http.server.HTTPServer(("127.0.0.1", 0), Kubelet)
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


def test_configz_is_read_with_and_without_verification(
    url: str, token: str, certificate: tuple[Path, Path]
) -> None:
    for ca in ("", str(certificate[1])):
        kubelet = configuration.read_configz(url, token, ca)
        assert kubelet is not None
        assert (kubelet.cpu_manager_policy, kubelet.source) == ("static", url)


def test_faults_name_the_address(url: str, token: str, tmp_path: Path) -> None:
    strangers = tmp_path / "ca"
    strangers.write_text("")
    with pytest.raises(ConfigurationError, match="401"):
        configuration.read_configz(url, "", "")
    with pytest.raises(ConfigurationError, match="configz: "):
        configuration.read_configz(url, token, str(strangers))
    with pytest.raises(ConfigurationError, match="No such file"):
        configuration.read_configz(url, str(tmp_path / "none"), "")


def test_no_answer_before_the_kubelet_is_up(token: str) -> None:
    assert configuration.read_configz("https://127.0.0.1:1/configz", token, "") is None


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"kubeletconfig": {"cpuManagerPolicy": 3}}'])
def test_torn_answer(tmp_path: Path, torn: str) -> None:
    answer = tmp_path / "configz"
    answer.write_text(torn)
    with pytest.raises(ConfigurationError, match="configz"):
        configuration.read_configz(f"file://{answer}", "", "")


def test_an_answer_that_is_not_http_is_named(token: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/configz"

        def greet() -> None:
            with server.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(ConfigurationError, match=address):
            configuration.read_configz(address, token, "")
        thread.join()
    with pytest.raises(ConfigurationError, match="port"):
        configuration.read_configz("https://node:10250x/configz", "", "")
