"""The scheduler's folder: files with the identity of a candidate, and with its Bindings that have
no answer yet. A process that starts after another one was killed continues that one's term.

The next process reuses the identity in the file, and so acquires the Lease at once. This is safe
because the former process is dead: it had locked the file, and the kernel releases the lock only
after the last system call of a process. The identity is in the locked file itself, so that it can't
be used without the lock:

- If the file is removed, the identity is gone too.
- A copy of the file is not used, because nobody holds its lock. A copy, also on another machine, is
  recognized by its inode and by the kernel's boot id.
- After a boot the identity is new, because files that the former process wrote to the folder may be
  lost if they were not flushed.

The file has the identity only from the first answer of a leader until the next process has read it.
So a process that ends before it can answer does not exclude other candidates from the Lease.

A Binding may take effect after the process that sent it was killed, because its bytes are still in
a buffer of the kernel, or because the API server has not written it yet. A process that continues
the term would not know it, and could allocate its CPUs and devices to another pod. So a process
keeps a file for each Binding from before it is sent until its outcome is known. The process that
continues the term sends these Bindings again before it decides anything. A pod is bound once: the
first of equal Bindings takes effect, and the others are conflicts. These files are valid only
together with the identity.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.host import files
from agent.host.locks import LockedError
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.scheduler.state.cluster import EXPIRY_SECONDS
from agent.scheduler.state.pod_info import PodName
from agent.scheduler.state.pods_api import BindingApi, BindOutcome, PodError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
_IDENTITY_FILE: Final = "identity"
_BINDINGS_FOLDER: Final = "bindings"
_SUFFIX: Final = ".json"
_IDENTITY_BYTES: Final = 4096
_BINDING_BYTES: Final = 1 << 20

GiveUp = Callable[[str], None]
"""Invalidates the files for the given reason, so that no later process continues the term of this
one. Raises OSError."""


class Candidate:
    """The identity of this process in the Lease, and its files in `folder`. Without a usable
    folder the identity is new, and `sent` is None: no Bindings are recorded. The folder stays
    locked until the process has ended."""

    def __init__(self, folder: str) -> None:
        new = f"{socket.gethostname()}_{uuid.uuid4()}"
        self.identity = new
        self.sent: SentBindings | None = None
        self._file: IdentityFile | None = None
        try:
            self._file = IdentityFile(folder, new)
            self.sent = self._sent(os.path.join(folder, _BINDINGS_FOLDER), self._file)
        except (OSError, LockedError) as error:
            log.warning("state-dir: %s is not used: %s", folder, error)
            return
        self.identity = self._file.identity

    def keep(self) -> None:
        """Lets the next process reuse this identity."""
        if self.sent is not None and self._file is not None:
            self._file.keep()

    @staticmethod
    def _sent(folder: str, file: IdentityFile) -> SentBindings:
        try:
            return SentBindings(folder, valid=file.reused, give_up=file.give_up)
        except ValueError as error:
            log.warning("the identity of the former process is not used: %s", error)
        file.renew()
        return SentBindings(folder, valid=False, give_up=file.give_up)


class IdentityFile:
    """The file with the identity. It is locked from construction until `close` or the end of the
    process, also if the process is killed."""

    def __init__(self, folder: str, new: str) -> None:
        """Creates the folder if it does not exist. `new`: the identity to use if the file has no
        valid one. Raises LockedError if another process has the file locked, and OSError."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._path = os.path.join(folder, _IDENTITY_FILE)
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
        """Whether the identity is that of a former process."""

    def renew(self) -> None:
        """Replaces the identity of the former process by the new one."""
        self.identity, self.reused = self._new, False

    def keep(self) -> None:
        """Writes the identity to the file, so that the next process can reuse it. Never raises."""
        if self._given_up:
            return
        try:
            os.pwrite(self._descriptor, msgspec.json.encode(self._with(self.identity)), 0)
        except OSError as error:
            self._report(str(error))

    def give_up(self, reason: str) -> None:
        """Removes the identity from the file for good, so that the next process has to wait until
        the Lease of this one expires. Raises OSError."""
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
        """The identity of the former process; None if the file has none, or is a copy."""
        try:
            found = bounds.decode(_content, os.pread(self._descriptor, _IDENTITY_BYTES, 0))
        except JsonError:
            return None
        valid = found.boot_id and found.identity and found == self._with(found.identity)
        return found.identity if valid else None

    def _with(self, identity: str) -> _Content:
        """The content that is valid for this file since the last boot."""
        found = os.fstat(self._descriptor)
        return _Content(identity, files.boot_id(), found.st_dev, found.st_ino)


class _Content(msgspec.Struct, frozen=True):
    """`device` and `inode`: those of the file, by which a copy is recognized."""

    identity: str
    boot_id: str
    device: int
    inode: int


_content: Final = msgspec.json.Decoder(_Content)


class SentBinding(msgspec.Struct, frozen=True):
    """A Binding in a file. `sent_at`: seconds of CLOCK_BOOTTIME, which is the same for all
    processes since the last boot."""

    pod: PodName
    node: str
    annotations: dict[str, str]
    sent_at: float


class SentBindings:
    """The files of the Bindings whose outcome is unknown. `former`: those of the former process, by
    uid of the pod. Safe for several threads, as long as only one at a time binds a pod."""

    def __init__(
        self,
        folder: str,
        *,
        valid: bool,
        give_up: GiveUp,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """Creates the folder if it does not exist. `valid`: this process continues the term of the
        former one; otherwise the files of the former one are removed. Raises OSError, and
        ValueError, which names the file, if a valid file can't be read."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._folder = folder
        self._give_up = give_up
        self._clock = clock
        self._lock = threading.Lock()
        self._unknown: dict[str, float] = {}
        self.former: dict[str, SentBinding] = {}
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            # A file with another name was not written completely, so its Binding was not sent.
            if not valid or not name.endswith(_SUFFIX) or name.startswith("."):
                os.unlink(path)
                continue
            found = _read(path)
            self.former[found.pod.uid] = found
            self._unknown[found.pod.uid] = found.sent_at

    def began(self, pod: PodName, node: str, annotations: Mapping[str, str]) -> None:
        """Must be called before a Binding is sent. Raises OSError; then it must not be sent."""
        now = self._clock()
        sent = SentBinding(pod, node, dict(annotations), now)
        with self._lock:
            for uid, sent_at in tuple(self._unknown.items()):
                if now - sent_at >= EXPIRY_SECONDS and uid not in self.former:
                    self.settled(uid)
            try:
                path, text = self._path(pod.uid), msgspec.json.encode(sent)
                files.replace(path, text, durable=False, mode=0o600)
            except OSError as error:
                self._give_up(str(error))
            if pod.uid in self._unknown:
                self._unknown[pod.uid] = now

    def ended(self, uid: str, outcome: BindOutcome) -> None:
        """Must be called with the outcome of each Binding. A failure does not settle an earlier
        Binding of the pod with an unknown outcome."""
        if outcome.bound or (outcome.bound is False and uid not in self._unknown):
            self.settled(uid)
        elif outcome.bound is None:
            self._unknown[uid] = self._clock()

    def settled(self, uid: str) -> None:
        """Removes the file of the pod, for which no Binding can take effect any more."""
        self._unknown.pop(uid, None)
        self.former.pop(uid, None)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(uid))
        except OSError as error:
            # The next process would send the Binding again, when another pod may own its CPUs.
            with contextlib.suppress(OSError):
                self._give_up(str(error))

    def sent_again(self, uid: str) -> None:
        """Records that the Binding of the former process was sent again, with an unknown
        outcome."""
        self.former[uid] = msgspec.structs.replace(self.former[uid], sent_at=self._clock())

    def final(self, sent: SentBinding) -> bool:
        """Whether the request is so old that the API server has ended it."""
        return self._clock() - sent.sent_at >= EXPIRY_SECONDS

    def _path(self, uid: str) -> str:
        # A digest has a bounded length and no slash, whatever the uid is.
        digest = hashlib.blake2b(uid.encode(), digest_size=16).hexdigest()
        return os.path.join(self._folder, digest + _SUFFIX)


class FormerBindings:
    """Sends the Bindings of the former process again. One thread calls `finish`."""

    def __init__(self, sent: SentBindings, bindings: BindingApi) -> None:
        self._sent = sent
        self._bindings = bindings

    @property
    def open(self) -> bool:
        """Whether the outcome of some Binding is unknown."""
        return bool(self._sent.former)

    def finish(self, continues: bool, wait: Callable[[float], bool]) -> bool:
        """Returns True when no Binding of the former process can take effect any more. `wait`
        pauses for the given number of seconds; if it returns True, this returns False. `continues`:
        no other process has led since the former one. Otherwise no Binding is sent again: another
        pod may own its CPUs, and the Lease has expired since it was sent."""
        while former := tuple(self._sent.former.values()):
            for each in former:
                if wait(0):
                    return False
                if not continues or self._sent.final(each) or self._settled(each):
                    self._sent.settled(each.pod.uid)
            if self._sent.former and wait(RETRY_SECONDS):
                return False
        return True

    def _settled(self, sent: SentBinding) -> bool:
        """Sends the same Binding. Returns whether the pod is bound or can't be bound any more."""
        outcome = self._bindings.bind(sent.pod, sent.node, sent.annotations)
        log.info(
            "pod %s: the Binding to node %s that a former process sent was sent again: %s",
            sent.pod.title,
            sent.node,
            "the pod is bound" if outcome.bound else outcome.error,
        )
        if outcome.bound:
            return True
        if outcome.bound is None:
            self._sent.sent_again(sent.pod.uid)
            return False
        # This Binding was refused, and the former one may still take effect.
        try:
            pod = self._bindings.pod(sent.pod)
        except PodError as error:
            log.warning("%s", error)
            return False
        return pod is None or bool(pod.node) or pod.deleted


def _read(path: str) -> SentBinding:
    try:
        return bounds.decode(_decoder, files.read(path, _BINDING_BYTES))
    except JsonError as error:
        raise ValueError(f"{path}: {error}") from None


_decoder: Final = msgspec.json.Decoder(SentBinding)
