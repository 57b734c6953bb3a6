"""The image of deploy/image, built on a base of Debian's packages, and run by runc.

Base and wheels are stored once in the cache of tests/tools; after that nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import tools

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "image" / "Dockerfile"
LOCKS = [DOCKERFILE.parent / f"{each}requirements.txt" for each in ("", "build-")]
SUITE, PYTHON = "bookworm", "3.11"
MACHINES = ("x86_64", "aarch64")
PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")
BASE = "topolet-test-base"
_PACKAGE = "opt/topolet/lib/python*/site-packages/agent"
_FETCH_SECONDS = 500
_PROGRAMS = ("buildah", "debootstrap", "runc")


class Mount(NamedTuple):
    """A folder of the host in a container."""

    inside: str
    outside: str
    read_only: bool = True


MACHINE = (Mount("/host/sys", "/sys"), Mount("/host/proc", "/proc"))


class Image:
    """A built image; `root` is its file system."""

    def __init__(self, folder: Path, root: Path, configuration: dict[str, Any]) -> None:
        self.root = root
        self.configuration = configuration
        self._folder = folder

    def run(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end. `more`: the arguments of `bundle`."""
        command, folder = self.bundle(words, **more)
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )

    @contextlib.contextmanager
    def running(
        self, log: Path, words: Sequence[str], **more: Any
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Runs a command; kills it at the end of the block. `more`: the arguments of `bundle`."""
        command, folder = self.bundle(words, **more)
        with log.open("ab") as written:
            process = subprocess.Popen(
                command, cwd=folder, stdout=written, stderr=written, stdin=subprocess.DEVNULL
            )
        try:
            yield process
        finally:
            delete = [*command[: command.index("run")], "delete", "--force", command[-1]]
            subprocess.run(delete, check=False)
            process.wait()

    def bundle(
        self,
        words: Sequence[str],
        *,
        user: int = 0,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Mount] = (),
        host_network: bool = False,
    ) -> tuple[list[str], Path]:
        """The runc command and the folder of a bundle with the security context of the manifests:
        a read-only root, no capabilities, no new privileges."""
        name = f"topolet-test-{uuid.uuid4().hex[:8]}"
        folder = self._folder / name
        folder.mkdir()
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        spec = json.loads((folder / "config.json").read_text())
        spec["root"] = {"path": str(self.root), "readonly": True}
        given = [f"{key}={value}" for key, value in (env or {}).items()]
        spec["process"] |= {
            "terminal": False,
            "args": list(words),
            "user": {"uid": user, "gid": user},
            "env": [*self.configuration["Env"], *given],
            "capabilities": {},
            "noNewPrivileges": True,
        }
        spec["linux"]["cgroupsPath"] = f"/{name}"
        if host_network:
            spaces = spec["linux"]["namespaces"]
            spec["linux"]["namespaces"] = [each for each in spaces if each["type"] != "network"]
        spec["mounts"] += [
            {
                "destination": each.inside,
                "source": str(each.outside),
                "type": "bind",
                "options": ["rbind", "rprivate", "ro" if each.read_only else "rw"],
            }
            for each in sorted(mounts)
        ]
        (folder / "config.json").write_text(json.dumps(spec))
        return ["runc", "--root", str(self._folder / "runc"), "run", name], folder


@contextlib.contextmanager
def built(folder: Path) -> Iterator[Image]:
    """The image, built from this checkout. Skips the test if it cannot be built here."""
    with _tagged() as (builder, name):
        container = builder.run("from", "--pull-never", name)
        try:
            root = Path(builder.run("mount", container))
            inspected = json.loads(builder.run("inspect", "--type=image", name))
            yield Image(folder, root, inspected["OCIv1"]["config"])
        finally:
            builder.run("rm", container)


def digest() -> str:
    """A digest of the files that the image is built from, except the base."""
    found = hashlib.sha256()
    named = ("pyproject.toml", "README.md", "LICENSE")
    sources = [DOCKERFILE, *LOCKS, *(ROOT / each for each in named)]
    sources += sorted((ROOT / "agent").rglob("*"))
    for file in sources:
        if file.is_file() and "__pycache__" not in file.parts:
            found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


def write_archive(path: Path, name: str, successor: tuple[Path, str] | None = None) -> None:
    """Writes a docker-archive of the image with that name, built from this checkout. `successor`:
    path and name of a second archive, whose package of Topolet has one more file, as that of a
    later version. Skips the test if the image cannot be built here."""
    with _tagged() as (builder, tagged):
        builder.run("push", "--quiet", tagged, f"docker-archive:{path}:{name}")
        if successor is None:
            return
        container = builder.run("from", "--pull-never", tagged)
        (package,) = Path(builder.run("mount", container)).glob(_PACKAGE)
        (package / "successor").touch()
        builder.run("commit", "--quiet", "--rm", container, f"{tagged}-successor")
        try:
            archive = f"docker-archive:{successor[0]}:{successor[1]}"
            builder.run("push", "--quiet", f"{tagged}-successor", archive)
        finally:
            builder.run("rmi", f"{tagged}-successor")


@contextlib.contextmanager
def building() -> Iterator[tuple[_Builder, list[str]]]:
    """The builder with a base, and the options with which a build finds the wheels. Skips the test
    if one of them is not available."""
    lacking = [each for each in _PROGRAMS if shutil.which(each) is None]
    if os.getuid() != 0 or lacking:
        pytest.skip(f"needs root and {', '.join(lacking)} (apt-get install {' '.join(lacking)})")
    cache = tools.cache() / "image"
    cache.mkdir(parents=True, exist_ok=True)
    builder = _Builder(cache)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            builder.make_base()
            wheels = _wheels(cache)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"no base for the image: {error}")
    with tempfile.TemporaryDirectory() as folder:
        pip = Path(folder, "pip.conf")
        pip.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        yield (
            builder,
            [
                "--isolation=chroot",
                "--pull-never",
                "--layers=false",
                f"--signature-policy={cache / 'policy.json'}",
                f"--volume={wheels}:/wheels:ro",
                f"--volume={pip}:/etc/pip.conf:ro",
            ],
        )


@contextlib.contextmanager
def _tagged() -> Iterator[tuple[_Builder, str]]:
    """Builds the image from this checkout under a unique name, and removes it at the end."""
    name = f"localhost/topolet-test-{uuid.uuid4().hex[:8]}"
    with building() as (builder, options):
        builder.run(
            "bud",
            *options,
            f"--build-arg=BASE=localhost/{BASE}",
            f"--tag={name}",
            f"--file={DOCKERFILE}",
            str(ROOT),
        )
    try:
        yield builder, name
    finally:
        builder.run("rmi", name)


class _Builder:
    """buildah with its own store."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._policy = cache / "policy.json"
        self._policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (cache / "registries.conf").write_text("unqualified-search-registries = []\n")

    @property
    def store(self) -> list[str]:
        """The options of all commands."""
        return [
            f"--root={self._cache / 'storage'}",
            f"--runroot={self._cache / 'run'}",
            "--storage-driver=overlay",
        ]

    def run(self, command: str, *words: str) -> str:
        """Runs a command; its standard output. Raises AssertionError."""
        policy = f"--signature-policy={self._policy}"
        if command in ("from", "commit", "push"):
            words = (policy, *words)
        done = subprocess.run(
            ["buildah", *self.store, command, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_FETCH_SECONDS,
            env={**os.environ, "CONTAINERS_REGISTRIES_CONF": str(self._cache / "registries.conf")},
        )
        if done.returncode:
            raise AssertionError(f"buildah {command}: {done.stderr[-3000:]}{done.stdout[-1000:]}")
        return done.stdout.strip()

    def make_base(self) -> None:
        """Makes the base that replaces python:3.13-slim, which would have to be pulled."""
        if f"localhost/{BASE}" in self.run("images", "--format={{.Name}}").split():
            return
        root = self._cache / "base"
        shutil.rmtree(root, ignore_errors=True)
        included = ",".join(PACKAGES)
        subprocess.run(
            ["nice", "debootstrap", "--variant=minbase", f"--include={included}", SUITE, str(root)],
            check=True,
            capture_output=True,
            timeout=_FETCH_SECONDS,
        )
        # The replaced image does not have these files either.
        for each in (*root.glob("usr/lib/python3*/**/*.pyc"), *root.glob("var/cache/apt/**/*.deb")):
            each.unlink()
        container = self.run("from", "scratch")
        self.run("add", "--quiet", container, str(root), "/")
        self.run("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(root)

    def make_bases(self) -> str:
        """A manifest list with bases for both architectures. The one for arm64 has the programs of
        amd64, which no test runs."""
        name = f"localhost/{BASE}-machines"
        if name not in self.run("images", "--format={{.Name}}").split():
            container = self.run("from", "--pull-never", f"localhost/{BASE}")
            self.run("config", "--arch=arm64", container)
            self.run("commit", "--quiet", "--rm", container, f"{BASE}-arm64")
            self.run("manifest", "create", name)
            for each in (BASE, f"{BASE}-arm64"):
                self.run("manifest", "add", name, f"containers-storage:localhost/{each}")
        return name


def _wheels(cache: Path) -> Path:
    """The folder with the locked packages, for the Python of the base and both architectures."""
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in LOCKS)).hexdigest()[:8]
    ready = cache / f"wheels-{digest}"
    if not ready.exists():
        unfinished = cache / "wheels.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        for machine in MACHINES:
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "download", "-q", "--dest", str(unfinished)),
                    *("--only-binary=:all:", "--require-hashes", f"--python-version={PYTHON}"),
                    *(f"--platform=manylinux_2_{minor}_{machine}" for minor in (28, 17)),
                    f"--platform=manylinux2014_{machine}",
                    *(f"--requirement={each}" for each in LOCKS),
                ],
                check=True,
                capture_output=True,
                timeout=_FETCH_SECONDS,
            )
        unfinished.rename(ready)
    return ready
