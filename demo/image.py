"""An image made on the spot from static busybox: nothing is downloaded."""

from __future__ import annotations

import hashlib
import io
import json
import pathlib
import platform
import shutil
import struct
import subprocess
import tarfile
from collections.abc import Iterable

NAME = "topolet.local/busybox:1"
BUSYBOX = "/bin/busybox"
SLEEP = (BUSYBOX, "sleep", "2147483647")


def busybox() -> str | None:
    """The host's busybox if it is static (Debian: busybox-static), else None."""
    found = shutil.which("busybox")
    return found if found and _is_static(pathlib.Path(found)) else None


def write_archive(
    path: pathlib.Path,
    binary: str,
    name: str = NAME,
    applets: Iterable[str] = ("sh",),
    programs: Iterable[pathlib.Path] = (),
) -> None:
    """Writes a docker-archive of one layer whose default command sleeps: a pause image too.

    `applets` are busybox's, by name; `programs` are further static programs. An image of another
    name has another id.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("bin", "proc", "sys", "tmp", "etc", "dev"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        content = pathlib.Path(binary).read_bytes()
        _add(tar, BUSYBOX.lstrip("/"), content, 0o755)
        _add(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534::/:\n", 0o644)
        _add(tar, "etc/group", b"root:x:0:\nnogroup:x:65534:\n", 0o644)
        for program in programs:
            _add(tar, f"bin/{program.name}", program.read_bytes(), 0o755)
        for applet in applets:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, BUSYBOX
            tar.addfile(link)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Cmd": list(SLEEP), "Env": ["PATH=/bin"], "Labels": {"name": name}},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        _add(tar, "config.json", config, 0o644)
        _add(tar, "layer.tar", layer.getvalue(), 0o644)
        _add(tar, "manifest.json", json.dumps(manifest).encode(), 0o644)


def all_applets(binary: str) -> list[str]:
    """Those that this busybox has."""
    said = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True).stdout
    return [name for name in said.split() if name != "busybox"]


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))


def _is_static(path: pathlib.Path) -> bool:
    """An ELF file without a program header of type 3, which names an interpreter."""
    with path.open("rb") as file:
        head = file.read(4096)
    if head[:4] != b"\x7fELF" or head[4] != 2:
        return False
    start, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
    kinds = (struct.unpack_from("<I", head, start + index * size)[0] for index in range(count))
    return 3 not in kinds


def _architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
