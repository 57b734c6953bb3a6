"""Relays TCP connections and delays every part of them: a slow server, or a slow network.

Arguments: the port to listen on, ADDRESS:PORT of the server, and a file with the delay in seconds,
which may change."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from pathlib import Path

_PART_BYTES = 1 << 20


def pump(source: socket.socket, target: socket.socket, delay: Path) -> None:
    """Passes everything from one to the other until one of them ends, then ends both."""
    with contextlib.suppress(OSError):
        while part := source.recv(_PART_BYTES):
            time.sleep(float(delay.read_text()))
            target.sendall(part)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def main() -> None:
    port, server, delay = sys.argv[1:]
    address, _, number = server.rpartition(":")
    with socket.create_server(("", int(port)), backlog=128) as listener:
        while True:
            client, _ = listener.accept()
            try:
                upstream = socket.create_connection((address, int(number)))
            except OSError:
                client.close()
                continue
            for ends in ((client, upstream), (upstream, client)):
                threading.Thread(target=pump, args=(*ends, Path(delay)), daemon=True).start()


if __name__ == "__main__":
    main()
