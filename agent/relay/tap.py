"""Reads the first message of a reply while its frames pass by, without delaying them."""

from __future__ import annotations

from agent.rpc import frames, grpc


class ReplyTap:
    """Told of every DATA frame of one stream: its head, then its payload in any pieces."""

    __slots__ = ("_data", "_left", "_limit", "_padded", "_wanted", "given_up")

    def __init__(self, limit_bytes: int) -> None:
        self.given_up = False
        self._limit = limit_bytes
        self._data = bytearray()
        self._wanted = -1
        self._left = 0
        self._padded = False

    def begin(self, flags: int, length: int) -> None:
        """The head of a DATA frame."""
        self._left = length
        self._padded = bool(flags & frames.PADDED)

    def piece(self, payload: memoryview) -> None:
        """Payload of the frame, as it arrives."""
        if not len(payload):
            return
        if self._padded:
            self._padded = False
            self._left -= 1 + payload[0]
            payload = payload[1:]
        content = payload[: max(self._left, 0)]
        self._left -= len(content)
        if self._wanted < 0:
            self._data += content
            self._read_prefix()
        elif len(self._data) < self._wanted:
            self._data += content[: self._wanted - len(self._data)]

    def message(self) -> bytes | None:
        """The first message, unpacked; None when it is incomplete or was given up."""
        if self.given_up or self._wanted < 0 or len(self._data) < self._wanted:
            return None
        message = bytes(self._data[grpc.PREFIX_BYTES : self._wanted])
        if not self._data[0]:
            return message
        try:
            return grpc.gunzip(message, self._limit)
        except grpc.MessageError:
            self.given_up = True
            return None

    def _read_prefix(self) -> None:
        try:
            prefix = grpc.read_prefix(self._data)
        except grpc.MessageError:
            self._give_up()
            return
        if prefix is None:
            return
        if prefix[1] > self._limit:
            self._give_up()
            return
        self._wanted = grpc.PREFIX_BYTES + prefix[1]
        del self._data[self._wanted :]

    def _give_up(self) -> None:
        self.given_up = True
        self._wanted = 0
        self._data.clear()
