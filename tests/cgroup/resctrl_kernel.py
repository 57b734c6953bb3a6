"""resctrl as a file system of this process, by the kernel's rules (fs/resctrl; include/uapi/linux/
fuse.h): no machine of the tests has the hardware.

Groups are made and removed as folders, `schemata` refuses what the machine can't have, `tasks`
moves threads that exist, and whatever is in no group is in the root group."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_IN: Final = struct.Struct("<IIQQIIII")
_OUT: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<QQQQQQIIIIIIIIII")
_BUFFER: Final = 1 << 18
_DIRECT_IO: Final = 1
_NAMELESS: Final = frozenset({2, 42})
"""FORGET and BATCH_FORGET have no answer."""


INTEL: Final = {
    "L3/cbm_mask": "7ff",
    "L3/min_cbm_bits": "2",
    "L3/num_closids": "6",
    "L2/cbm_mask": "ff",
    "L2/min_cbm_bits": "1",
    "L2/num_closids": "8",
    "MB/num_closids": "8",
    "MB/bandwidth_gran": "10",
    "MB/min_bandwidth": "10",
    "MB/delay_linear": "1",
}
"""The files of `info` of a machine with 11 ways and limits in percent."""
OF_INTEL: Final = {"L3": {0: 0x7FF, 1: 0x7FF}, "MB": {0: 100, 1: 100}, "L2": {0: 0xFF, 3: 0xFF}}


class RefusedError(OSError):
    """What the kernel refuses."""


class ResctrlKernel:
    """The state: groups, their schemata and threads.

    `schemata`: of the root group and of each new one, by line and domain.
    `info`: the files of `info`, by path."""

    def __init__(
        self,
        schemata: Mapping[str, Mapping[int, int]],
        info: Mapping[str, str],
    ) -> None:
        self.info = {**info, "last_cmd_status": "ok"}
        self.default = {name: dict(values) for name, values in schemata.items()}
        self.schemata: dict[str, dict[str, dict[int, int]]] = {"": self._new()}
        self.tasks: dict[int, str] = {}
        self.calls: list[str] = []
        """What was changed, in order."""
        self.most: int | None = None
        """The most groups for reasons that `info` does not state, with the root group."""
        self.refuses_after: int | None = None
        """So many changes are made; those after fail, as if the machine had ended."""

    def _new(self) -> dict[str, dict[int, int]]:
        return {name: dict(values) for name, values in self.default.items()}

    def state(self) -> object:
        """For comparisons: the groups, and the threads in them that exist."""
        tasks = {each: group for each, group in self.tasks.items() if _exists(each)}
        return {name: self._text(name) for name in self.schemata}, tasks

    def _change(self, call: str) -> None:
        if self.refuses_after is not None and len(self.calls) >= self.refuses_after:
            raise RefusedError(errno.EIO, call)
        self.calls.append(call)

    def make(self, name: str) -> None:
        if name in self.schemata:
            raise RefusedError(errno.EEXIST, name)
        most = min(int(text) for path, text in self.info.items() if path.endswith("/num_closids"))
        if len(self.schemata) >= min(most, self.most or most):
            self.info["last_cmd_status"] = "Out of CLOSIDs"
            raise RefusedError(errno.ENOSPC, name)
        self._change(f"mkdir {name}")
        self.schemata[name] = self._new()

    def remove(self, name: str) -> None:
        if name not in self.schemata:
            raise RefusedError(errno.ENOENT, name)
        self._change(f"rmdir {name}")
        del self.schemata[name]
        self.tasks = {task: group for task, group in self.tasks.items() if group != name}

    def read(self, name: str, file: str) -> str:
        if file == "schemata":
            return self._text(name)
        if not name:
            return ""
        return "".join(f"{task}\n" for task, of in self.tasks.items() if of == name)

    def _text(self, name: str) -> str:
        """As the kernel writes it: names and values have their widths."""
        return "".join(
            f"{line:>10}:"
            + ";".join(
                f"{at}={value:>4}" if line.endswith(("MB", "MBA")) else f"{at}={value:05x}"
                for at, value in values.items()
            )
            + "\n"
            for line, values in self.schemata[name].items()
        )

    def write(self, name: str, file: str, text: str) -> None:
        if file == "tasks":
            task = int(text)
            if not _exists(task):
                raise RefusedError(errno.ESRCH, text)
            self._change(f"{name}/tasks {task}")
            self.tasks.pop(task, None)
            if name:
                self.tasks[task] = name
            return
        new = {line: dict(values) for line, values in self.schemata[name].items()}
        for line in text.splitlines():
            of, _, values = line.partition(":")
            for pair in values.split(";"):
                at, _, value = pair.partition("=")
                if of not in new or int(at) not in new[of]:
                    self._refuse(f"unknown domain {of} {at}")
                new[of][int(at)] = self._value(of, value)
        self._change(f"{name}/schemata {text}")
        self.schemata[name] = new

    def _value(self, line: str, value: str) -> int:
        if line in ("MB", "SMBA"):
            amount, step = int(value), int(self.info["MB/bandwidth_gran"])
            least = int(self.info["MB/min_bandwidth"])
            if not least <= amount <= self.default[line][0] or amount % step:
                self._refuse(f"MB value {amount} out of range [{least},{self.default[line][0]}]")
            return amount
        mask, whole = int(value, 16), int(self.info[f"{line}/cbm_mask"], 16)
        row = f"{mask:b}".rstrip("0")
        if "0" in row or len(row) < int(self.info[f"{line}/min_cbm_bits"]) or mask & ~whole:
            self._refuse(f"mask {mask:x} has non-consecutive 1-bits or is out of range")
        return mask

    def _refuse(self, status: str) -> None:
        self.info["last_cmd_status"] = status
        raise RefusedError(errno.EINVAL, status)


def _exists(task: int) -> bool:
    return os.path.exists(f"/proc/{task}")


class MountedResctrl:
    """The kernel's state as a file system on a folder, until `close`. Raises OSError where that
    can't be mounted."""

    def __init__(self, folder: Path, kernel: ResctrlKernel) -> None:
        self.path = str(folder)
        self.kernel = kernel
        self._nodes = {1: ""}
        self._ids = {"": 1}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40755,user_id=0,group_id=0".encode()
        if self._libc.mount(b"resctrl", self.path.encode(), b"fuse", 0, options):
            os.close(self._device)
            raise OSError(ctypes.get_errno(), "cannot mount FUSE")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Unmounts it."""
        self._libc.umount2(self.path.encode(), 2)
        self._thread.join()
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, _BUFFER)
            except OSError:  # it is unmounted
                return
            _, code, unique, node, *_ = _IN.unpack_from(request)
            try:
                answer, error = self._answer(code, node, request[_IN.size :]), 0
            except OSError as refusal:
                answer, error = b"", refusal.errno or errno.EIO
            except (KeyError, ValueError):
                answer, error = b"", errno.EINVAL
            if code not in _NAMELESS:
                with contextlib.suppress(FileNotFoundError):  # who asked has ended
                    os.write(
                        self._device, _OUT.pack(_OUT.size + len(answer), -error, unique) + answer
                    )

    def _answer(self, code: int, node: int, body: bytes) -> bytes:
        path = self._nodes.get(node, "")
        name = body.split(b"\0")[0].decode(errors="replace")
        match code:
            case 26:  # INIT
                return struct.pack(
                    "<IIIIHHIIHHI", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 0, 0, 0
                ) + bytes(28)
            case 1:  # LOOKUP
                return self._entry(f"{path}/{name}")
            case 3 | 4:  # GETATTR, SETATTR
                return struct.pack("<QII", 0, 0, 0) + self._attributes(path)
            case 14 | 27:  # OPEN, OPENDIR
                return struct.pack("<QII", 0, _DIRECT_IO if code == 14 else 0, 0)
            case 15:  # READ
                _, offset, size = struct.unpack_from("<QQI", body)
                return self._text(path).encode()[offset : offset + size]
            case 16:  # WRITE
                _, _, size = struct.unpack_from("<QQI", body)
                group, _, file = path.strip("/").rpartition("/")
                self.kernel.write(group, file, body[40 : 40 + size].decode())
                return struct.pack("<II", size, 0)
            case 28:  # READDIR
                _, offset, _ = struct.unpack_from("<QQI", body)
                return b"" if offset else self._listing(path)
            case 9:  # MKDIR
                made = body[8:].split(b"\0")[0].decode()
                self.kernel.make(made)
                return self._entry(f"{path}/{made}")
            case 11:  # RMDIR
                self.kernel.remove(name)
                return b""
            case 18 | 25 | 29 | 2 | 42:  # RELEASE, FLUSH, RELEASEDIR, FORGET, BATCH_FORGET
                return b""
        raise OSError(errno.ENOSYS, str(code))

    def _kind(self, path: str) -> int:
        """The mode. Raises OSError."""
        first, _, rest = path.strip("/").partition("/")
        if not first or (first in self.kernel.schemata and not rest) or path == "/info":
            return stat.S_IFDIR | 0o755
        if first == "info" and any(each.startswith(f"{rest}/") for each in self.kernel.info):
            return stat.S_IFDIR | 0o755
        if first == "info" and rest in self.kernel.info:
            return stat.S_IFREG | 0o444
        file = rest if first in self.kernel.schemata else path.strip("/")
        if file in ("schemata", "tasks"):
            return stat.S_IFREG | 0o644
        raise OSError(errno.ENOENT, path)

    def _attributes(self, path: str) -> bytes:
        mode = self._kind(path)
        at = self._ids.setdefault(path, len(self._ids) + 1)
        self._nodes[at] = path
        return _ATTR.pack(at, 0, 0, 0, 0, 0, 0, 0, 0, mode, 2, 0, 0, 0, 4096, 0)

    def _entry(self, path: str) -> bytes:
        attributes = self._attributes(path)
        return struct.pack("<QQQQII", self._ids[path], 0, 0, 0, 0, 0) + attributes

    def _text(self, path: str) -> str:
        first, _, rest = path.strip("/").partition("/")
        if first == "info":
            return self.kernel.info[rest] + "\n"
        return self.kernel.read(first if rest else "", rest or first)

    def _listing(self, path: str) -> bytes:
        above = path.strip("/")
        if not above:
            names = ["info", "schemata", "tasks", *filter(None, self.kernel.schemata)]
        elif above in self.kernel.schemata:
            names = ["schemata", "tasks"]
        else:
            below = above.removeprefix("info").strip("/")
            prefix = f"{below}/" if below else ""
            names = sorted(
                {
                    each.removeprefix(prefix).partition("/")[0]
                    for each in self.kernel.info
                    if each.startswith(prefix)
                }
            )
        listing = b""
        for at, name in enumerate(names, 1):
            kind = stat.S_IFMT(self._kind(f"{path}/{name}")) >> 12
            entry = struct.pack("<QQII", at, at, len(name), kind) + name.encode()
            listing += entry + bytes(-len(entry) % 8)
        return listing
