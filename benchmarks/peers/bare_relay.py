"""Relays a unix socket and interprets nothing: the minimum cost of a proxy in Python in front of
the runtime. Each message takes a wait, a receive and a send.

usage: bare_relay.py LISTEN CONNECT
"""

from __future__ import annotations

import select
import socket
import sys

_BUFFER_BYTES = 256 * 1024


def main() -> None:
    path, upstream_path = sys.argv[1:]
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    waiting = select.epoll()
    waiting.register(listening, select.EPOLLIN)
    peers: dict[int, tuple[socket.socket, socket.socket]] = {}
    buffer = bytearray(_BUFFER_BYTES)
    view = memoryview(buffer)
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor == listening.fileno():
                client = listening.accept()[0]
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(upstream_path)
                for one, other in ((client, upstream), (upstream, client)):
                    peers[one.fileno()] = one, other
                    waiting.register(one, select.EPOLLIN)
            elif descriptor in peers:
                source, target = peers[descriptor]
                size = source.recv_into(buffer)
                if size:
                    target.sendall(view[:size])
                else:
                    for each in (source, target):
                        peers.pop(each.fileno(), None)
                        each.close()


if __name__ == "__main__":
    main()
