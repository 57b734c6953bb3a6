"""Builds the published files of a version: wheel, image, chart, SBOM, VEX, provenance, checksums.

    python deploy/release.py [--tag v0.1.0] [--output dist] [--platform linux/amd64] [--base IMAGE]
        [--plugin OWNER/NAME]

The image is an OCI archive with an image for each platform, built by buildah. No program of another
platform is executed during the build. The command prints the size of the image and the time of its
start. It packs the chart if deploy/chart exists. With --plugin it packs the plugin of kubectl too,
and writes its manifest for krew, which names the files of a release in that repository of GitHub.
If buildah is missing, or a base can't be pulled, the command fails and writes no files; --no-image
builds all other parts.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
IMAGE: Final = ROOT / "deploy" / "image"
CHART: Final = ROOT / "deploy" / "chart"
PLATFORMS: Final = ("linux/amd64", "linux/arm64")
PLUGIN: Final = ROOT / "deploy" / "plugin"
PYTHONS: Final = ("3.11", "3.12", "3.13")
"""Versions of Python for which the plugin has compiled modules."""
START_RUNS: Final = 3
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MANYLINUX: Final = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
_PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_BASE: Final = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
_CHART_FIELD: Final = re.compile(r"^(name|version|appVersion): *\"?([^\s\"#]+)", re.MULTILINE)


class ReleaseError(RuntimeError):
    """A part can't be built; the message has the part and the reason."""


class Package(NamedTuple):
    """`kind`: pypi or deb. `sha256`: of each file that may be installed."""

    kind: str
    name: str
    version: str
    sha256: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        folder = "debian/" if self.kind == "deb" else ""
        return f"pkg:{self.kind}/{folder}{self.name}@{self.version}"


def version() -> str:
    """The version of the project. Raises ReleaseError."""
    found = re.search(r'^VERSION = "(.+)"$', (ROOT / "agent/__init__.py").read_text(), re.MULTILINE)
    if found is None:
        raise ReleaseError("agent/__init__.py: VERSION is missing")
    return found[1]


def base() -> str:
    """The base of the image, with its digest. Raises ReleaseError."""
    found = _BASE.search((IMAGE / "Dockerfile").read_text())
    if found is None:
        raise ReleaseError("deploy/image/Dockerfile: no ARG BASE")
    return found[1]


def locked(lock: str) -> list[Package]:
    """The packages of a lock file of pip."""
    starts = list(_PINNED.finditer(lock))
    ends = [*(each.start() for each in starts[1:]), len(lock)]
    return [
        Package("pypi", each[1].lower(), each[2], tuple(_HASH.findall(lock[each.end() : end])))
        for each, end in zip(starts, ends, strict=True)
    ]


def debian_packages(status: str) -> list[Package]:
    """The installed packages in dpkg's file `status`."""
    found = []
    for entry in status.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Status): (.*)$", entry, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found.append(Package("deb", fields["Package"], fields["Version"]))
    return found


def sbom(number: str, packages: Iterable[Package]) -> dict[str, Any]:
    """The SBOM of a version in the format CycloneDX. The serial number depends only on the
    packages."""
    components = [
        {
            "type": "library",
            "name": each.name,
            "version": each.version,
            "purl": each.url,
            "bom-ref": each.url,
        }
        # The lock has the hashes of the files of all platforms; a component has only one of them.
        | ({"properties": [{"name": "sha256", "value": one} for one in each.sha256]}
           if each.sha256 else {})
        for each in sorted(set(packages))
    ]  # fmt: skip
    own = {"type": "application", "name": "topolet", "version": number}
    own["purl"] = own["bom-ref"] = f"pkg:pypi/topolet@{number}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": _urn(components),
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}
        ],
    }


def provenance(
    files: Iterable[Path], commit: str, used_base: str, *, dirty: bool
) -> dict[str, Any]:
    """An unsigned in-toto statement with the SLSA provenance of the files. `dirty`: the work tree
    has changes that are not in the commit."""
    materials = [{"uri": f"git+{commit}", "digest": {"gitCommit": commit}}]
    name, _, digest = used_base.partition("@sha256:")
    if digest:
        materials.append({"uri": f"pkg:docker/{name}", "digest": {"sha256": digest}})
    for lock in sorted(IMAGE.glob("*requirements.txt")):
        uri = str(lock.relative_to(ROOT))
        materials.append({"uri": uri, "digest": {"sha256": sha256(lock)}})
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each.name, "digest": {"sha256": sha256(each)}} for each in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "deploy/release.py",
                "externalParameters": {"base": used_base, "uncommittedChanges": dirty},
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": "deploy/release.py"}},
        },
    }


def check_tag(tag: str) -> None:
    """Raises ReleaseError if a tag of git is not that of the project's version, or the chart has
    another version."""
    number = version()
    if tag != f"v{number}":
        raise ReleaseError(f"tag {tag}: VERSION in agent/__init__.py is {number}")
    fields = dict(_CHART_FIELD.findall((CHART / "Chart.yaml").read_text()))
    for key in ("version", "appVersion"):
        if fields.get(key) != number:
            raise ReleaseError(f"Chart.yaml: {key} is {fields.get(key)}, VERSION is {number}")


def exploitability() -> list[dict[str, Any]]:
    """The vulnerabilities that scanners find in the image and that can't be exploited there, each
    with its packages and the reason."""
    statements: list[dict[str, Any]] = json.loads((IMAGE / "vex.json").read_text())
    return statements


def vex(statements: Iterable[dict[str, Any]], timestamp: str) -> dict[str, Any]:
    """The OpenVEX document with the statements of `exploitability`. `timestamp`: in RFC 3339."""
    body = [
        {
            "vulnerability": {"name": statement["vulnerability"]},
            "products": [
                {
                    "@id": "pkg:oci/topolet",
                    "subcomponents": [{"@id": package} for package in statement["packages"]],
                }
            ],
            "status": "not_affected",
            "justification": statement["justification"],
            "impact_statement": statement["reason"],
        }
        for statement in statements
    ]
    return {
        "@context": "https://openvex.dev/ns/v0.2.0",
        "@id": _urn(body),
        "author": "The Topolet maintainers",
        "timestamp": timestamp,
        "version": 1,
        "statements": body,
    }


def _urn(body: Any) -> str:
    """An identifier that depends only on the body."""
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    return f"urn:uuid:{uuid.UUID(bytes=digest[:16])}"


def sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def checksums(files: Iterable[Path]) -> str:
    """The file that `sha256sum --check` reads."""
    return "".join(f"{sha256(each)}  {each.name}\n" for each in sorted(files))


def pack_chart(chart: Path, folder: Path) -> Path:
    """Packs the chart as `helm package` does, but reproducibly: equal files give equal bytes.
    Raises ReleaseError."""
    fields = dict(_CHART_FIELD.findall((chart / "Chart.yaml").read_text()))
    if not fields.keys() >= {"name", "version"}:
        raise ReleaseError(f"{chart / 'Chart.yaml'}: name or version is missing")
    return _pack(chart, fields["name"], folder / f"{fields['name']}-{fields['version']}.tgz")


def _pack(source: Path, top: str, written: Path) -> Path:
    """Writes an archive with the folder `source` as `top`. Hidden files are left out."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file in sorted(source.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                entry = tarfile.TarInfo(f"{top}/{file.relative_to(source)}")
                entry.size = file.stat().st_size
                entry.mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
                with file.open("rb") as opened:
                    archive.addfile(entry, opened)
    written.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return written


def pack_plugin(built: Path, platform: str, folder: Path) -> Path:
    """Packs the plugin of kubectl with its Python packages for a platform and all of PYTHONS, whose
    compiled modules have different names and so lie side by side. `built`: Topolet's wheel. Raises
    ReleaseError."""
    architecture = _architecture(platform)
    (machine,) = (name for name, other in _MACHINES.items() if other == architecture)
    platforms = [f"--platform={name}_{machine}" for name in _MANYLINUX]
    with tempfile.TemporaryDirectory() as made:
        packed, site = Path(made, "packed"), Path(made, "packed", "site")
        for python in PYTHONS:
            words = ("--only-binary=:all:", "--require-hashes", f"--python-version={python}")
            lock = str(PLUGIN / "requirements.txt")
            _install(Path(made, python), *words, *platforms, "-r", lock)
            shutil.copytree(Path(made, python), site, dirs_exist_ok=True)
        _install(Path(made, "own"), "--no-deps", "--no-index", str(built))
        shutil.copytree(Path(made, "own"), site, dirs_exist_ok=True)
        shutil.rmtree(site / "bin")
        (site / "__main__.py").write_text(
            "from agent.__main__ import main\n\nraise SystemExit(main())\n"
        )
        shutil.copy(PLUGIN / "kubectl-topolet", packed)
        shutil.copy(ROOT / "LICENSE", packed)
        return _pack(
            packed, "topolet", folder / f"topolet-{version()}-plugin-{architecture}.tar.gz"
        )


def _install(target: Path, *words: str) -> None:
    options = ("--quiet", "--disable-pip-version-check", "--no-compile", f"--target={target}")
    _run([sys.executable, "-m", "pip", "install", *options, *words])


def krew_manifest(number: str, repository: str, archives: dict[str, Path]) -> dict[str, Any]:
    """The manifest of the plugin for krew. `repository`: OWNER/NAME at GitHub. `archives`: by
    platform."""
    page = f"https://github.com/{repository}"
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "topolet"},
        "spec": {
            "version": f"v{number}",
            "homepage": page,
            "shortDescription": "Shows and explains which CPUs and devices pods have",
            "description": "Shows what agents of Topolet decided on nodes, explains why a pod\n"
            "gets no node, and finds what is wrong with a node.\n",
            "caveats": "The plugin needs Python 3.11, 3.12 or 3.13, and Topolet in the cluster.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux", "arch": _architecture(platform)}},
                    "uri": f"{page}/releases/download/v{number}/{archive.name}",
                    "sha256": sha256(archive),
                    "files": [{"from": "topolet/*", "to": "."}],
                    "bin": "kubectl-topolet",
                }
                for platform, archive in sorted(archives.items())
            ],
        },
    }


def wheel(folder: Path) -> Path:
    words = ("--no-deps", "--quiet", "--disable-pip-version-check", f"--wheel-dir={folder}")
    _run([sys.executable, "-m", "pip", "wheel", *words, str(ROOT)])
    (made,) = folder.glob("topolet-*.whl")
    return made


class Builder:
    """Runs buildah. `words`: options of each command. `build_options`: options of the build. Raises
    ReleaseError."""

    def __init__(self, words: Sequence[str] = (), build_options: Sequence[str] = ()) -> None:
        self._words, self._build_options = words, build_options
        if shutil.which("buildah") is None:
            raise ReleaseError("buildah is missing (apt-get install buildah)")

    def build(self, name: str, platforms: Sequence[str], used_base: str, archive: Path) -> None:
        """Writes an OCI archive with the images of all platforms."""
        labels = {"version": version(), "revision": revision(), "base.name": used_base}
        self._call("manifest", "create", name)
        for platform in platforms:
            words = (
                *self._build_options,
                f"--platform={platform}",
                f"--build-arg=BASE={used_base}",
                # buildah sets TARGETARCH only in a build for several platforms.
                f"--build-arg=TARGETARCH={_architecture(platform)}",
                *(f"--label=org.opencontainers.image.{key}={text}" for key, text in labels.items()),
                f"--tag={_tag(name, platform)}",
                f"--file={IMAGE / 'Dockerfile'}",
                str(ROOT),
            )
            try:
                self._call("bud", *words)
            except ReleaseError as error:
                raise ReleaseError(
                    f"{error}\nIf the base {used_base} can't be pulled, make release "
                    'RELEASE="--base IMAGE" uses another one, and RELEASE=--no-image none'
                ) from None
            self._call("manifest", "add", name, f"containers-storage:{_tag(name, platform)}")
        self._call("manifest", "push", "--all", "--quiet", name, f"oci-archive:{archive}")

    def inspect(self, name: str, platform: str) -> tuple[list[Package], str]:
        """The Debian packages of the image for this machine's platform, and a line with its size
        and the shortest time of several starts."""
        container = self._call("from", "--pull-never", _tag(name, platform))
        try:
            root = Path(self._call("mount", container))
            size = sum(each.lstat().st_size for each in root.rglob("*") if not each.is_symlink())
            took = []
            for _ in range(START_RUNS):
                start = time.perf_counter()
                self._call("run", "--isolation=chroot", container, "--", "topolet", "--help")
                took.append(time.perf_counter() - start)
            status = root / "var/lib/dpkg/status"
            packages = debian_packages(status.read_text()) if status.exists() else []
        finally:
            self._call("rm", container)
        return packages, f"{size / 1e6:.0f} MB unpacked, topolet --help in {min(took):.2f} s"

    def remove(self, name: str, platforms: Sequence[str]) -> None:
        """Removes the images of a build from buildah's store."""
        for words in (["manifest", "rm", name], *(["rmi", _tag(name, one)] for one in platforms)):
            with contextlib.suppress(ReleaseError):
                self._call(*words)

    def _call(self, *words: str) -> str:
        return _run(["buildah", *self._words, *words])


def _tag(name: str, platform: str) -> str:
    return f"{name}-{_architecture(platform)}"


def _architecture(platform: str) -> str:
    return platform.rpartition("/")[2]


def own_platform() -> str:
    """The platform of this machine."""
    machine = os.uname().machine
    return f"linux/{_MACHINES.get(machine, machine)}"


def revision() -> str:
    return _run(["git", "-C", str(ROOT), "rev-parse", "HEAD"])


def _run(words: Sequence[str]) -> str:
    """Runs a program; returns its standard output. Raises ReleaseError."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = f"{done.stdout}\n{done.stderr}".strip().splitlines()
        raise ReleaseError("\n".join([f"{words[0]} has failed:", *lines[-15:]]))
    return done.stdout.strip()


def release(
    folder: Path,
    *,
    builder: Builder | None,
    platforms: Sequence[str],
    used_base: str,
    repository: str | None = None,
) -> list[Path]:
    """Builds all parts into an empty folder; without `builder`, all but the image; with the
    `repository` OWNER/NAME of GitHub, the plugin of kubectl too. Raises ReleaseError."""
    number = version()
    files = [wheel(folder)]
    packages = locked((IMAGE / "requirements.txt").read_text())
    if builder is not None:
        name, own = f"localhost/topolet-release-{uuid.uuid4().hex[:8]}", own_platform()
        archive = folder / f"topolet-{number}-image.tar"
        try:
            builder.build(name, platforms, used_base, archive)
            base_packages, line = (
                builder.inspect(name, own) if own in platforms else ([], "not started")
            )
        finally:
            builder.remove(name, platforms)
        files.append(archive)
        packages += base_packages
        print(f"image for {', '.join(platforms)}: archive {archive.stat().st_size / 1e6:.0f} MB, "
              f"{line}")  # fmt: skip
    if CHART.exists():
        files.append(pack_chart(CHART, folder))
    if repository is not None:
        packed = {platform: pack_plugin(files[0], platform, folder) for platform in platforms}
        # JSON is YAML; krew wants the name of the plugin.
        manifest = folder / "topolet.yaml"
        body = krew_manifest(number, repository, packed)
        manifest.write_text(json.dumps(body, indent=1) + "\n")
        files += [*packed.values(), manifest]
    bom = folder / f"topolet-{number}.cdx.json"
    bom.write_text(json.dumps(sbom(number, packages), indent=1) + "\n")
    files.append(bom)
    openvex = folder / f"topolet-{number}.openvex.json"
    timestamp = _run(["git", "-C", str(ROOT), "log", "-1", "--format=%cI"])
    openvex.write_text(json.dumps(vex(exploitability(), timestamp), indent=1) + "\n")
    files.append(openvex)
    statement = folder / f"topolet-{number}.provenance.json"
    dirty = bool(_run(["git", "-C", str(ROOT), "status", "--porcelain"]))
    provenance_body = provenance(files, revision(), used_base, dirty=dirty)
    statement.write_text(json.dumps(provenance_body, indent=1) + "\n")
    files.append(statement)
    (folder / "SHA256SUMS").write_text(checksums(files))
    return [*files, folder / "SHA256SUMS"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--platform", action="append", choices=PLATFORMS)
    parser.add_argument("--base", help="another base of the image than the Dockerfile's")
    parser.add_argument("--no-image", action="store_true")
    parser.add_argument("--plugin", metavar="OWNER/NAME", help="the repository of the release")
    parser.add_argument("--tag", help="fail if the version's tag is another one")
    options = parser.parse_args()
    try:
        if options.tag is not None:
            check_tag(options.tag)
        used_base = options.base or base()
        builder = None if options.no_image else Builder()
        with tempfile.TemporaryDirectory() as folder:
            files = release(
                Path(folder),
                builder=builder,
                platforms=options.platform or PLATFORMS,
                used_base=used_base,
                repository=options.plugin,
            )
            os.makedirs(options.output, exist_ok=True)
            for each in files:
                shutil.move(each, options.output / each.name)
    except (ReleaseError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print((options.output / "SHA256SUMS").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
