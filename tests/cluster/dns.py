"""A cluster's DNS server: A records of the Services that have an address, read from the API server.

usage: dns.py ADDRESS KUBECONFIG (with files, as the harness writes them)
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import time
import urllib.request
from pathlib import Path

_FRESH_SECONDS = 1.0
_TTL_SECONDS = 5
_A, _IN = 1, 1
_NO_SUCH_NAME = 3


class Services:
    """Addresses by name."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._url = f"{server['server']}/api/v1/services"
        self._tls = ssl.create_default_context(cafile=server["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._known: dict[str, str] = {}
        self._updated_at = 0.0

    def address(self, name: str) -> str | None:
        """Its last known address while the API server does not answer."""
        if time.monotonic() - self._updated_at > _FRESH_SECONDS:
            self._updated_at = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, context=self._tls, timeout=5) as response:
                    self._known = _names(json.load(response)["items"])
            except OSError as error:
                print(f"{self._url}: {error}", flush=True)
        return self._known.get(name)


def _names(services: list[dict[str, dict[str, str]]]) -> dict[str, str]:
    return {
        f"{each['metadata']['name']}.{each['metadata']['namespace']}.svc.cluster.local": each[
            "spec"
        ]["clusterIP"]
        for each in services
        if each["spec"].get("clusterIP", "None") != "None"
    }


def question(packet: bytes) -> tuple[str, int, int]:
    """The name and the type of the question, and the offset of its end."""
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    (kind,) = struct.unpack_from(">H", packet, at + 1)
    return ".".join(labels).lower(), kind, at + 5


def reply(packet: bytes, services: Services) -> bytes:
    """An authoritative answer, without records if the name does not have any of that type."""
    name, kind, end = question(packet)
    address = services.address(name)
    record = b""
    if address is not None and kind == _A:
        record = b"\xc0\x0c" + struct.pack(">HHIH", _A, _IN, _TTL_SECONDS, 4)
        record += socket.inet_aton(address)
    flags = 0x8580 | (_NO_SUCH_NAME if address is None else 0)
    counts = struct.pack(">HHHHH", flags, 1, 1 if record else 0, 0, 0)
    return packet[:2] + counts + packet[12:end] + record


def main() -> None:
    services = Services(Path(sys.argv[2]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind((sys.argv[1], 53))
        while True:
            packet, who = listening.recvfrom(4096)
            listening.sendto(reply(packet, services), who)


if __name__ == "__main__":
    main()
