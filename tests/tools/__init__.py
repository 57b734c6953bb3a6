"""Go programs for tests, built once from their published modules into a cache. Each folder here is
a module that pins the programs of one set, or of several ones, in go.mod and go.sum.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=-s -w")
_BUILD_SECONDS = 3600

VERSIONS = {each: f"kubernetes-{each}" for each in ("1.33", "1.34", "1.35", "1.37")}
"""Sets with the programs OF_VERSION, by the version of Kubernetes, in addition to the set
"kubernetes": `make test-all` runs some suites with them."""
OF_VERSION = ("kube-apiserver", "kube-scheduler", "kubelet")
KUBEADM = {"1.33": "kubeadm-1.33", "1.36": "kubeadm", "1.37": "kubeadm-1.37"}
"""Sets with kubeadm, by the version of Kubernetes."""

_MODULES = {
    "containerd": "github.com/containerd/containerd/v2",
    "containerd-1.7": "github.com/containerd/containerd",
    "containerd-2.0": "github.com/containerd/containerd/v2",
    "cosign": "github.com/sigstore/cosign/v2",
    "cosign-3": "github.com/sigstore/cosign/v3",
    **dict.fromkeys(("cri-o", "cri-o-1.36"), "github.com/cri-o/cri-o"),
    "cri-tools": "sigs.k8s.io/cri-tools",
    "dra-driver": "k8s.io/kubernetes",
    "grpc-peer": "google.golang.org/grpc",
    **dict.fromkeys(
        ("koord-runtime-proxy", "koordinator"), "github.com/koordinator-sh/koordinator"
    ),
    "etcd": "go.etcd.io/etcd/server/v3",
    "helm": "helm.sh/helm/v4",
    "helm3": "helm.sh/helm/v3",
    "krew": "sigs.k8s.io/krew",
    "kubernetes": "k8s.io/kubernetes",
    **dict.fromkeys((*VERSIONS.values(), *KUBEADM.values()), "k8s.io/kubernetes"),
}
_FOLDERS = {"koord-runtime-proxy": "koordinator"}
"""The folder of a set that shares the module of another one."""
SOURCES = {"go-nvml": "github.com/NVIDIA/go-nvml"}
"""Modules whose sources are read by tests, and not built."""

# Storage drivers that no test uses.
_TAGS = "-tags=no_btrfs,no_devmapper,no_zfs,no_aufs,urfave_cli_no_docs"
# No test has signed images: the verification in Go needs no C libraries.
_CRI_O_TAGS = (
    "-tags=containers_image_openpgp,containers_image_ostree_stub,"
    "exclude_graphdriver_btrfs,btrfs_noversion"
)
_KOORDINATOR = f"{_MODULES['koordinator']}/cmd"
# cri.descriptor next to crictl and critest: the CRI of both, as a FileDescriptorProto.
_COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(
        ("containerd", "containerd-1.7", "containerd-2.0"), (("install", *_FLAGS, _TAGS, "tool"),)
    ),
    **dict.fromkeys(("cosign", "cosign-3"), (("install", *_FLAGS, "tool"),)),
    **dict.fromkeys(
        ("cri-o", "cri-o-1.36"),
        (
            ("install", *_FLAGS, _CRI_O_TAGS, "tool"),
            ("run", *_FLAGS, "../cri-o/pinns/main.go", "{folder}/pinns"),
        ),
    ),
    "cri-tools": (
        ("install", *_FLAGS, "tool"),
        ("test", *_FLAGS, "-c", "-o", "{folder}/critest", "sigs.k8s.io/cri-tools/cmd/critest"),
        ("run", *_FLAGS, "./descriptor", "{folder}/cri.descriptor"),
    ),
    "dra-driver": (("install", *_FLAGS, "tool"),),
    "grpc-peer": (("install", *_FLAGS, "."),),
    "koord-runtime-proxy": (("install", *_FLAGS, f"{_KOORDINATOR}/koord-runtime-proxy"),),
    "koordinator": (
        (
            "install",
            *_FLAGS,
            f"{_KOORDINATOR}/koord-manager",
            f"{_KOORDINATOR}/koord-scheduler",
        ),
    ),
    "etcd": (("install", *_FLAGS, "."),),
    "helm": (("install", *_FLAGS, "tool"),),
    "helm3": (("install", *_FLAGS, "tool"),),
    "krew": (("install", *_FLAGS, "tool"),),
    "kubernetes": (("install", *_FLAGS, "tool"),),
    **dict.fromkeys((*VERSIONS.values(), *KUBEADM.values()), (("install", *_FLAGS, "tool"),)),
}
NAMES = tuple(_MODULES)
ONLY_LONG = (
    *("containerd-1.7", "containerd-2.0", "cosign", "cosign-3", "cri-o", "cri-o-1.36"),
    *("dra-driver", "helm3", "koordinator", "krew"),
    *VERSIONS.values(),
    *KUBEADM.values(),
)
"""Sets that only `make test-all` builds and uses."""
ASSETS = ("etcd", "kubernetes")
"""Programs that KUBEBUILDER_ASSETS has too, if it is set."""


class _BuildError(RuntimeError):
    """The text has the reason."""


@functools.cache
def built(name: str) -> Path | str:
    """The folder with the programs of one set of NAMES, or why they are not available.

    Builds them if necessary; concurrent callers wait.
    """
    ready = folder(name)
    if ready.exists():
        return ready
    if shutil.which("go") is None:
        return f"{name}: no go here to build it"
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
        with (ready.parent / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready.exists():
                with tempfile.TemporaryDirectory(dir=ready.parent) as unfinished:
                    target = Path(unfinished) / "bin"
                    _build(name, target)
                    target.rename(ready)
    except (OSError, _BuildError) as error:
        return f"{name}: {error}"
    return ready


def folder(name: str) -> Path:
    """The folder of the set for `built`; different for each version and each way to build it."""
    recipe = hashlib.sha256(repr(_COMMANDS[name]).encode())
    for file in sorted(path for path in module(name).rglob("*") if path.is_file()):
        recipe.update(file.read_bytes())
    digest = recipe.hexdigest()[:8]
    return cache() / f"{name}-{version(name)}-{digest}"


def module(name: str) -> Path:
    """The folder with the module of the set."""
    return _HERE / _FOLDERS.get(name, name)


def version(name: str) -> str:
    """The version that the module of the set pins, as "v1.36.3"."""
    path = module(name) / "go.mod"
    found = re.search(rf"{re.escape(_MODULES[name])} (v\S+)", path.read_text())
    assert found is not None, f"{path} does not name {_MODULES[name]}"
    return found[1]


def kubernetes(program: str) -> Path | str:
    """A program of Kubernetes, or etcd: from the folder KUBEBUILDER_ASSETS if that is set,
    otherwise built; or the reason why it is not available. TOPOLET_KUBERNETES takes precedence for
    the programs OF_VERSION.
    """
    selected = _selected()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if selected and program in OF_VERSION:
        where = built(selected)
    elif assets:
        asset = Path(assets).absolute() / program
        return asset if asset.exists() else f"{program}: not in KUBEBUILDER_ASSETS, {assets}"
    else:
        where = built("etcd" if program == "etcd" else "kubernetes")
    return where if isinstance(where, str) else where / program


def kubernetes_version() -> str:
    """The version of Kubernetes that tests start, as text."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    selected = _selected()
    if assets and not selected:
        return f"that of {assets}"
    return version(selected or "kubernetes")


def kubernetes_minor() -> int:
    """The minor version of Kubernetes that tests start. That of the folder KUBEBUILDER_ASSETS is
    taken to be the same as that of the set "kubernetes"."""
    return int(version(_selected() or "kubernetes").split(".")[1])


def _selected() -> str | None:
    """The set of the version in TOPOLET_KUBERNETES; None: the usual one."""
    selected = os.environ.get("TOPOLET_KUBERNETES")
    if selected and selected not in VERSIONS:
        raise ValueError(f"TOPOLET_KUBERNETES={selected}: not one of {', '.join(VERSIONS)}")
    return VERSIONS[selected] if selected else None


@functools.cache
def source(name: str) -> Path | str:
    """The published source of the module that a folder here pins, as Go unpacks it; or the reason
    why it is not available."""
    module = SOURCES[name]
    try:
        done = subprocess.run(
            ["go", "mod", "download", "-json", module],
            cwd=_HERE / name,
            capture_output=True,
            text=True,
            check=False,
            timeout=_BUILD_SECONDS,
        )
    except OSError as error:
        return f"{name}: no go here to download it: {error}"
    except subprocess.TimeoutExpired:
        return f"{name}: go mod download takes more than {_BUILD_SECONDS} s"
    answer = json.loads(done.stdout) if done.stdout else {"Error": done.stderr.strip()}
    return f"{name}: {answer['Error']}" if "Error" in answer else Path(answer["Dir"])


def unpacked(program: str) -> str | None:
    """A program of the Debian package of its name, installed or as tests/tools/prepare unpacked
    it."""
    found = sorted(map(str, cache().glob(f"{program}-*/usr/*bin/{program}")))
    return shutil.which(program) or next(iter(found), None)


NPM_PACKAGES = {"axe-core": "4.14.1"}
"""Packages of npm that tests use, without their dependencies, by version."""


def npm_package(name: str) -> Path | str:
    """The folder of a package of npm, as tests/tools/prepare unpacked it; or the reason why it is
    not available."""
    folder = cache() / f"{name}-{NPM_PACKAGES[name]}"
    return folder if folder.exists() else f"no {name} here (tests/tools/prepare fetches it by npm)"


def cache() -> Path:
    """The folder for built and downloaded files."""
    return Path(os.environ.get("TOPOLET_CACHE") or Path.home() / ".cache" / "topolet").absolute()


def _build(name: str, target: Path) -> None:
    target.mkdir()
    for subcommand, *words in _COMMANDS[name]:
        try:
            done = subprocess.run(
                ["nice", "go", subcommand, *(word.format(folder=target) for word in words)],
                cwd=module(name),
                env={**os.environ, "CGO_ENABLED": "0", "GOBIN": str(target)},
                capture_output=True,
                text=True,
                check=False,
                timeout=_BUILD_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise _BuildError(f"go {subcommand} takes more than {_BUILD_SECONDS} s") from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["fails without output"]
            raise _BuildError(f"go {subcommand}: {lines[-1]}")
