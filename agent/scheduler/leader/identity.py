"""The identity of a candidate for a Lease, in a file that outlives the process.

A process that was killed finds its own Lease when it starts again. It may acquire that Lease at
once, since the former process is dead: it had the file locked, and the kernel releases the lock
after the last system call of a process. The identity and the lock are in one file, so that a
process never finds the one without the other:

- a file that was removed takes the identity with it;
- a copy, also one on another machine, is recognized by the inode and the kernel's boot id, and is
  not used: nobody holds the lock of a copy;
- after a boot the identity is new, since a file that was not flushed may lack what the former
  process had written to its folder.

The file has the identity from the first answer of a leader until the process that follows has read
it. So a process that ends before it can answer does not keep the Lease from other candidates.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from typing import Final

import msgspec

from agent.host import files
from agent.host.locks import LockedError

log = logging.getLogger(__name__)

_FILE: Final = "identity"
_MOST_BYTES: Final = 4096


class IdentityFile:
    """The file of one process. It is locked from construction until `close` or the end of the
    process, however it ends."""

    def __init__(self, folder: str, new: str) -> None:
        """Creates the folder if it does not exist. `new`: the identity, unless the former process
        left a valid one. Raises LockedError if another process has the file, and OSError."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._path = os.path.join(folder, _FILE)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.ExitStack() as failing:
            self._descriptor = os.open(self._path, flags, 0o600)
            failing.callback(os.close, self._descriptor)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError(f"{self._path} is locked by another process") from None
            former = self._former()
            os.ftruncate(self._descriptor, 0)
            failing.pop_all()
        self._new = new
        self._given_up = False
        self.identity = former or new
        self.reused = former is not None
        """Whether the identity is that of a former process, which is dead."""

    def renew(self) -> None:
        """Replaces the identity of the former process by the new one."""
        self.identity, self.reused = self._new, False

    def keep(self) -> None:
        """Writes the identity: the process that follows may know itself again. Never raises."""
        if self._given_up:
            return
        try:
            os.pwrite(self._descriptor, msgspec.json.encode(self._with(self.identity)), 0)
        except OSError as error:
            self._report(str(error))

    def give_up(self, reason: str) -> None:
        """Removes the identity for good: the process that follows waits until the Lease of this one
        expires. Raises OSError."""
        if not self._given_up:
            os.ftruncate(self._descriptor, 0)
            self._given_up = True
            self._report(reason)

    def close(self) -> None:
        """Unlocks the file. Its content stays."""
        os.close(self._descriptor)

    def _report(self, reason: str) -> None:
        log.warning(
            "%s: %s; if this process is killed, the next one waits until the lease expires",
            self._path,
            reason,
        )

    def _former(self) -> str | None:
        """The identity in the file, None if it is not valid."""
        try:
            found = _content.decode(os.pread(self._descriptor, _MOST_BYTES, 0))
        except msgspec.DecodeError:
            return None
        valid = found.boot_id and found.identity and found == self._with(found.identity)
        return found.identity if valid else None

    def _with(self, identity: str) -> _Content:
        """The content of this very file, on this boot."""
        found = os.fstat(self._descriptor)
        return _Content(identity, files.boot_id(), found.st_dev, found.st_ino)


class _Content(msgspec.Struct, frozen=True):
    """`device` and `inode` are those of the file itself."""

    identity: str
    boot_id: str
    device: int
    inode: int


_content: Final = msgspec.json.Decoder(_Content)
