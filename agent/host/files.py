"""Small files of the host: bulk reads below a root, and atomic replacement."""

from __future__ import annotations

import contextlib
import errno
import os
import re

_CHUNK = 65_536
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})
"""The errors of a missing file; a sysfs file gives ENODEV when its CPU just went offline."""


def host_path(root: str, path: str) -> str:
    """The path as the host has it: without `root`, below which a pod sees the host's files."""
    below = path.removeprefix(root.rstrip("/"))
    return below if below.startswith("/") else path


def with_host_paths(root: str, text: str) -> str:
    """The text with its paths as the host has them (`host_path`)."""
    top = root.rstrip("/")
    return re.sub(rf"(?<![\w./-]){re.escape(top)}/", "/", text) if top else text


def reason(error: OSError) -> str:
    """The path and the reason, without the number of the error."""
    if error.strerror is None:
        return str(error)
    named = (error.filename, error.strerror)
    return ": ".join(str(each) for each in named if each is not None)


class Tree:
    """Reads of small, whole files below `root`, as in sysfs and procfs.

    Paths are relative to the root and plain strings. Nothing is cached. Errors other than
    absence (such as EACCES) are OSErrors that name the path.
    """

    __slots__ = ("_base", "root")

    def __init__(self, root: str) -> None:
        self.root = root
        self._base = root if root.endswith("/") else root + "/"

    def path(self, path: str) -> str:
        """The full path, for messages."""
        return self._base + path

    def read(self, path: str, limit: int | None = None) -> bytes | None:
        """The content, at most `limit` bytes of it; None where the file is absent."""
        try:
            fd = os.open(self._base + path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        try:
            data = os.read(fd, limit or _CHUNK)
            while limit is None and (more := os.read(fd, _CHUNK)):
                data += more
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise OSError(error.errno, error.strerror, self.path(path)) from error
        finally:
            os.close(fd)
        return data

    def text(self, path: str) -> str | None:
        """The content up to the first NUL, stripped; None when absent or blank."""
        data = self.read(path)
        if data is None:
            return None
        return data.partition(b"\0")[0].decode("utf-8", "replace").strip() or None

    def names(self, path: str) -> list[str]:
        """The entries of a directory in no particular order; empty when absent."""
        try:
            return os.listdir(self._base + path)
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise

    def link(self, path: str) -> str | None:
        """The target of a symbolic link, as it is written; None where there is none."""
        try:
            return os.readlink(self._base + path)
        except OSError as error:
            if error.errno in _ABSENT or error.errno == errno.EINVAL:
                return None
            raise

    def exists(self, path: str) -> bool:
        """Whether the path leads to something (a dangling link does not)."""
        return os.path.exists(self._base + path)


Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp(*paths: str) -> Stamp:
    """A value that changes when one of the files is replaced or written, also through a link above
    it, as in the kubelet's volumes. An empty path means no file."""
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read(path: str, most_bytes: int) -> bytes:
    """The content. Raises OSError, also for a file that is larger: EFBIG."""
    with open(path, "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", path)
    return data


def replace(path: str, data: bytes, *, durable: bool, mode: int = 0o644) -> None:
    """Replaces a file so that a reader sees the old content or the new, never a part.

    `durable` also survives a power cut: file and folder are flushed before the return. The
    folder must exist, and only one writer at a time may replace a path. Raises OSError, and then
    the old file is unchanged and no temporary file is left.
    """
    folder, name = os.path.split(path)
    folder = folder or "."
    # A fixed name: a writer that was killed leaves one file, and the next writer replaces it.
    temporary = os.path.join(folder, f".{name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        flush_folder(folder)


def flush_folder(folder: str) -> None:
    """Lets the names in the folder survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: str) -> None:
    """Makes the folder and those above it, as os.makedirs. Nobody else may write to a new folder,
    whatever the umask.

    Raises OSError."""
    if path and not os.path.isdir(path):
        make_folders(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o755)


def boot_id() -> str:
    """The kernel's id of this boot, the same in every container, "" without one."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
