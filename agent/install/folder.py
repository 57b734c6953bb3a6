"""The folder of a version: the interpreter of this process, its libraries and Topolet, copied.

The copy does not depend on the host's Python or C library: its own dynamic loader starts the
program, and finds every shared library in the folder. The folders are called `bin` and `lib`,
because SELinux policies let services execute files in them (file_contexts: /opt/.../bin,
/opt/.../lib).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import py_compile
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import agent

PROGRAM: Final = "topolet"
VERSION: Final = re.compile(r"[0-9][\w.+]*-[0-9a-f]{8}(\.unfinished)?")
"""The names of folders of versions."""
_DISTRIBUTION: Final = "topolet"
_PACKAGES: Final = "packages"
_LEFT_OUT: Final = frozenset(
    {
        *("test", "tests", "idlelib", "lib2to3", "turtledemo", "tkinter", "ensurepip", "venv"),
        *("pydoc_data", "site-packages", "dist-packages"),
    }
)
"""Folders of the standard library that no command needs."""
_LEFT_OUT_MODULES: Final = ("_test", "_ctypes_test", "_tkinter", "_xx", "xxlimited")
_ELF: Final = b"\x7fELF"
_PT_INTERP: Final = 3
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_LOADED: Final = re.compile(r"=> (/\S+) \(0x")
_LAUNCHER: Final = """#!/bin/sh
# Starts Topolet with the loader, the libraries and the interpreter of this folder.
here=$(CDPATH= cd -P -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd)
exec "$here/lib/{loader}" --library-path "$here/lib" \\
    "$here/bin/{python}" -I -S -B "$here/bin/topolet.py" "$@"
"""
_MAIN: Final = f"""import os, sys
here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(here, "{_PACKAGES}"))
from agent.__main__ import main
sys.exit(main())
"""


class FolderError(RuntimeError):
    """The interpreter can't be copied; the message says why."""


def version() -> str:
    """The name of the folder: the version of Topolet, and a digest of its files and its Python, so
    that images of the same version with different files have different folders."""
    found = hashlib.sha256(sys.version.encode())
    package = _package()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return f"{importlib.metadata.version(_DISTRIBUTION)}-{found.hexdigest()[:8]}"


def stage(folder: str) -> None:
    """Makes the folder atomically, unless it exists. Raises OSError, FolderError."""
    if os.path.isdir(folder):
        return
    unfinished = Path(f"{folder}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    loader = _loader(interpreter)
    standard = Path(sysconfig.get_path("stdlib"))
    for name in ("bin", "lib", _PACKAGES):
        (unfinished / name).mkdir(parents=True)
    library = unfinished / "lib" / standard.name
    _copy_standard_library(standard, library)
    _copy_packages(unfinished / _PACKAGES)
    python = unfinished / "bin" / interpreter.name
    shutil.copy2(interpreter, python)
    shutil.copy2(loader.resolve(), unfinished / "lib" / loader.name)
    for needed in sorted(_libraries(loader, [interpreter, *_modules(unfinished)])):
        shutil.copy2(needed.resolve(), unfinished / "lib" / needed.name)
    _compile(unfinished)
    launcher = unfinished / "bin" / PROGRAM
    (unfinished / "bin" / f"{PROGRAM}.py").write_text(_MAIN)
    launcher.write_text(_LAUNCHER.format(loader=loader.name, python=interpreter.name))
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    (unfinished / "lib" / loader.name).chmod(0o755)
    started = subprocess.run([launcher, "proxy", "--help"], capture_output=True, check=False)
    if started.returncode:
        why = started.stderr.decode(errors="replace")[-300:].strip()
        raise FolderError(f"{launcher}: the copied interpreter does not start: {why}")
    os.sync()
    unfinished.rename(folder)


def _package() -> Path:
    return Path(next(iter(agent.__path__)))


def _copy_standard_library(standard: Path, target: Path) -> None:
    def left_out(folder: str, names: list[str]) -> set[str]:
        top = Path(folder) == standard
        return {
            name
            for name in names
            if (top and (name in _LEFT_OUT or name.startswith("config-")))
            or name.startswith(_LEFT_OUT_MODULES)
        }

    shutil.copytree(standard, target, ignore=left_out)


def _copy_packages(target: Path) -> None:
    """Topolet and the distributions that it requires."""
    shutil.copytree(_package(), target / "agent", symlinks=False)
    own = importlib.metadata.distribution(_DISTRIBUTION)
    for distribution in (own, *_required(_DISTRIBUTION, set())):
        for file in distribution.files or ():
            # Of Topolet itself only the metadata: an editable installation lists other files.
            metadata = file.parts[0].endswith(".dist-info")
            if ".." not in file.parts and (distribution is not own or metadata):
                copied = target / file
                copied.parent.mkdir(parents=True, exist_ok=True)
                source = Path(str(distribution.locate_file(file)))
                if source.is_file():
                    shutil.copy2(source, copied)


def _required(name: str, seen: set[str]) -> Iterator[importlib.metadata.Distribution]:
    """The distribution and those that it requires, without extras.

    Raises FolderError for one that is not installed."""
    for requirement in importlib.metadata.requires(name) or ():
        match = _NAME.match(requirement)
        if ";" in requirement or match is None or match[0] in seen:
            continue
        seen.add(match[0])
        try:
            yield importlib.metadata.distribution(match[0])
        except importlib.metadata.PackageNotFoundError as error:
            raise FolderError(f"{match[0]} is not installed: {error}") from error
        yield from _required(match[0], seen)


def _loader(interpreter: Path) -> Path:
    """The dynamic loader that the program names (elf(5), PT_INTERP). Raises FolderError."""
    with interpreter.open("rb") as file:
        head = file.read(64)
        if head[:5] != _ELF + b"\x02":
            raise FolderError(f"{interpreter} is not a program of 64 bits")
        (start,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for number in range(count):
            file.seek(start + number * size)
            kind, _, offset, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
            if kind == _PT_INTERP:
                file.seek(offset)
                return Path(os.fsdecode(file.read(length).rstrip(b"\0")))
    raise FolderError(f"{interpreter} is linked statically: it names no dynamic loader")


def _modules(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*.so*"):
        with path.open("rb") as file:
            if file.read(4) == _ELF:
                yield path


def _libraries(loader: Path, programs: Iterable[Path]) -> set[Path]:
    """The shared libraries that these programs and modules need.

    Raises FolderError."""
    paths: set[Path] = set()
    for program in programs:
        listed = subprocess.run(
            [loader, "--list", program], capture_output=True, text=True, check=False
        )
        if listed.returncode:
            raise FolderError(f"{loader} --list {program}: {listed.stderr.strip()[-200:]}")
        if missing := re.search(r"(\S+) => not found", listed.stdout):
            raise FolderError(f"{program}: the library {missing[1]} is missing")
        paths.update(map(Path, _LOADED.findall(listed.stdout)))
    return {path for path in paths if path.name != loader.name}


def _compile(folder: Path) -> None:
    """Compiles each module that has no bytecode: the service can't write to its folder."""
    for source in folder.rglob("*.py"):
        compiled = Path(importlib.util.cache_from_source(str(source)))
        if not compiled.exists():
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(source), quiet=1, doraise=False, invalidation_mode=mode)
