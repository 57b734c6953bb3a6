"""A server on a socket that answers as irqbalance does."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Final

from agent.cgroup import irqbalance
from agent.cgroup.machine_files import mask_of
from agent.model.cpu.cpuset import CpuSet
from tests.waiting import DEADLINE_SECONDS

GROUP: Final = "/4711"
"""Its name among the values of the machine."""


class Balancer:
    """Answers on a socket as irqbalance does; a new value counts after `scan`."""

    def __init__(self, root: Path, banned: str = "", *, masks: bool = False) -> None:
        """`masks`: it is one of those that take a mask."""
        self.banned = CpuSet.parse(banned)
        self.told: str | None = None
        self.masks = masks
        self.requests: list[str] = []
        self.answer = ""
        self.silent = False
        self.slow = False
        folder = root / irqbalance.FOLDER
        folder.mkdir(parents=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(folder / f"irqbalance{GROUP[1:]}.sock"))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer:
                message, ancillary, _, _ = peer.recvmsg(500, socket.CMSG_SPACE(12))
                request = message.decode()
                assert ancillary[0][2][4:8] == bytes(4), "the sender is root"
                self.requests.append(request)
                if self.silent:
                    peer.settimeout(DEADLINE_SECONDS)
                    peer.recv(1)  # until the other side has waited long enough
                elif self.slow:
                    with contextlib.suppress(BrokenPipeError):
                        for _ in range(60):
                            peer.send(b"x")
                            time.sleep(0.05)
                elif request == "setup":
                    answer = self.answer or f"SLEEP 10 BANNED {mask_of(self.banned)}"
                    peer.sendall(answer.encode())
                else:
                    self.told = request.removeprefix("settings cpus ")

    def belong_to(self, user: int) -> None:
        """Lets the kernel say that this user listens."""
        os.seteuid(user)
        try:
            self._socket.listen(1)
        finally:
            os.seteuid(0)

    def scan(self) -> None:
        """What it does every ten seconds."""
        if self.told is not None:
            parse = CpuSet.parse_mask if self.masks else CpuSet.parse
            try:
                self.banned = parse("" if self.told == "NULL" else self.told)
            except ValueError:
                self.banned = CpuSet()
        self.told = None

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
