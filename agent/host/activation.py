"""A listening socket that the service manager holds (systemd's socket activation).

It is there before the process and stays when the process ends: whoever connects meanwhile waits
(sd_listen_fds(3)).
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

_FIRST: Final = 3


class ActivationError(Exception):
    """The service manager gave something else than one listening unix stream socket."""


def inherited(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The socket given to this process, None where none is; the variables that tell of it are
    removed, for they are not for children. Raises ActivationError."""
    given = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS")}
    environment.pop("LISTEN_FDNAMES", None)
    if given["LISTEN_PID"] != str(os.getpid()) or given["LISTEN_FDS"] in ("", "0"):
        return None
    if given["LISTEN_FDS"] != "1":
        raise ActivationError(f"LISTEN_FDS={given['LISTEN_FDS']}: one socket is served, no more")
    try:
        it = socket.socket(fileno=_FIRST)
    except OSError as error:
        raise ActivationError(f"descriptor {_FIRST} is no socket: {error.strerror}") from None
    listens = it.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if it.family != socket.AF_UNIX or it.type != socket.SOCK_STREAM or not listens:
        it.detach()
        raise ActivationError(f"descriptor {_FIRST} is no listening unix stream socket")
    it.setblocking(False)
    os.set_inheritable(_FIRST, False)
    return it
