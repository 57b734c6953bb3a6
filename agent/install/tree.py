"""Files of a host below a root: read as values, and replaced atomically.

In a container, the root is the folder where the host's root is mounted. Absolute links, such as
`/var/run` on many distributions, are followed below that root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from typing import Final

import msgspec

from agent.host import files

_MAX_LINKS: Final = 40
_MAX_BYTES: Final = 4 << 20


class TreeError(ValueError):
    """A file that can't be changed; the message names it."""


class FileState(msgspec.Struct, frozen=True):
    """The state of a path: a text file, a symbolic link, or nothing."""

    text: str | None = None
    """None unless it is a file."""
    link: str | None = None
    """The target, None unless it is a link."""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0

    @property
    def absent(self) -> bool:
        return self.text is None and self.link is None


ABSENT: Final = FileState()


class TextFile(msgspec.Struct, frozen=True):
    """A file with its path on the host."""

    path: str
    state: FileState

    @property
    def text(self) -> str:
        return self.state.text or ""


class HostTree:
    """The files of the host, below `root`. Arguments are absolute paths of the host. Methods raise
    OSError."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"

    def path(self, path: str, *, follow: bool = True) -> str:
        """The path for this process.

        `follow`: whether a link in the last part is followed.

        Raises TreeError for too many links."""
        at = self.root
        todo = [part for part in reversed(path.split("/")) if part]
        links = 0
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                at = os.path.dirname(at) if at != self.root else at
                continue
            step = os.path.join(at, part)
            target = _target(step) if todo or follow else None
            if target is None:
                at = step
                continue
            links += 1
            if links > _MAX_LINKS:
                raise TreeError(f"{path}: too many symbolic links")
            if target.startswith("/"):
                at = self.root
            todo += [part for part in reversed(target.split("/")) if part]
        return at

    def real(self, path: str) -> str:
        """The path on the host with all links followed. Raises TreeError."""
        found = self.path(path)
        return found if self.root == "/" else found[len(self.root) :] or "/"

    def state(self, path: str) -> FileState:
        """The state of the path; a link is not followed. Raises TreeError for something other than
        a text file or a link."""
        place = self.path(path, follow=False)
        try:
            found = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return ABSENT
        if stat.S_ISLNK(found.st_mode):
            return FileState(link=os.readlink(place))
        if not stat.S_ISREG(found.st_mode):
            raise TreeError(f"{path}: is not a regular file")
        try:
            text = files.read(place, _MAX_BYTES).decode()
        except UnicodeDecodeError:
            raise TreeError(f"{path}: is not UTF-8") from None
        return FileState(text, None, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)

    def file(self, path: str) -> TextFile | None:
        """The text file at this path, with its path after all links; None without one. Raises
        TreeError."""
        real = self.real(path)
        state = self.state(real)
        return None if state.text is None else TextFile(real, state)

    def put(self, path: str, state: FileState) -> None:
        """Gives the path this state, atomically and durably; makes the folders above it."""
        place = self.path(path, follow=False)
        if state.absent:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(place)
                files.flush_folder(os.path.dirname(place))
            return
        files.make_folders(os.path.dirname(place))
        if state.link is not None:
            temporary = f"{place}.topolet-new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            os.symlink(state.link, temporary)
            os.rename(temporary, place)
            files.flush_folder(os.path.dirname(place))
            return
        files.replace(place, (state.text or "").encode(), durable=True, mode=state.mode)
        if (os.geteuid(), os.getegid()) != (state.uid, state.gid):
            os.chown(place, state.uid, state.gid)

    def names(self, folder: str) -> list[str]:
        """The sorted names in a folder; none if it does not exist."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(self.path(path))

    def remove_folder(self, path: str) -> None:
        """Removes a folder with everything in it, if it exists."""
        place = self.path(path, follow=False)
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)

    def remove_empty(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self.path(path, follow=False))


def _target(path: str) -> str | None:
    """The target of a symbolic link, None if the path is not one."""
    try:
        return os.readlink(path)
    except OSError:
        return None
