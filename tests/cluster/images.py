"""Images that a containerd has unpacked, kept in the cache of tests/tools.

containerd stores its metadata of images in two databases, and their layers in folders that do not
change. A node has the images once it has a copy of the databases and mounts the folders.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from tests import tools
from tests.cluster import world
from tests.cluster.machine import Machine
from tests.cluster.node import start_containerd
from tests.deploy.manifests import objects
from tests.fixtures import image
from tests.integration import image as topolet_image

KUBE_SCHEDULER = "registry.k8s.io/kube-scheduler:v1.36.3"
"""The image in deploy/overlays/scheduler."""

SUCCESSOR = "successor"
"""The tag of Topolet's image of the next version."""

_DATABASES = (
    "io.containerd.metadata.v1.bolt/meta.db",
    "io.containerd.snapshotter.v1.overlayfs/metadata.db",
)
_BLOBS = "io.containerd.content.v1.content/blobs"
_LAYERS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
_KEPT, _IN_USE_SECONDS = 3, 2 * 3600.0
"""The number of folders to keep, beside those that nodes of a running test may use: several
checkouts may run tests, each with its own images."""

# Read-only, so that no containerd removes files that others use.
_JOIN = f"""images=$1 root=/var/lib/containerd
cd "$images"
for each in {" ".join(_DATABASES)}; do
    mkdir -p $root/$(dirname $each)
    cp $each $root/$each
done
for each in {_BLOBS} {_LAYERS}/*; do
    mkdir -p $root/$each
    mount --bind -o ro "$images/$each" $root/$each
done
"""


def join(machine: Machine, images: Path) -> None:
    """Adds the images to a machine whose containerd has never run."""
    machine.run("sh", "-ec", _JOIN, "sh", images)


def prepared(programs: str) -> Path:
    """The folder with the images of Topolet and its next version, of pods and pause, and of
    kube-scheduler. Makes it
    after one of them has changed, or skips the test. `programs`: as of a world."""
    busybox, scheduler = image.busybox(), tools.kubernetes("kube-scheduler")
    assert busybox is not None
    assert isinstance(scheduler, Path)
    digest = hashlib.sha256(f"{topolet_image.digest()} {programs} {SUCCESSOR}".encode())
    for program in (Path(busybox), scheduler):
        made = program.stat()
        digest.update(f" {program} {made.st_size} {made.st_mtime_ns}".encode())
    folder = tools.cache() / "cluster-images"
    folder.mkdir(parents=True, exist_ok=True)
    ready = folder / digest.hexdigest()[:16]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            with tempfile.TemporaryDirectory(dir=folder) as unfinished:
                _prepare(Path(unfinished), programs, busybox, scheduler)
                (Path(unfinished) / "containerd").rename(ready)
            kept = sorted(
                (each for each in folder.iterdir() if each.is_dir()),
                key=lambda each: each.stat().st_mtime,
            )
            for each in kept[:-_KEPT]:
                if time.time() - each.stat().st_mtime > _IN_USE_SECONDS:
                    shutil.rmtree(each)
        os.utime(ready)
    return ready


def _prepare(folder: Path, programs: str, busybox: str, scheduler: Path) -> None:
    archives = [folder / f"{name}.tar" for name in ("topolet", "busybox", "kube-scheduler")]
    archives.append(folder / "successor.tar")
    name = f"docker.io/library/{image_name()}"
    topolet_image.write_archive(archives[0], name, (archives[-1], successor_of(name)))
    image.write_archive(archives[1], busybox)
    image.write_archive(archives[2], busybox, KUBE_SCHEDULER, programs=(scheduler,))
    with world.created(programs) as place:
        start_containerd(place)
        for archive in archives:
            place.run("ctr", "-n", "k8s.io", "images", "import", "--local", archive)
        place.end("containerd")
        for name in (*_DATABASES, _BLOBS, _LAYERS):
            (folder / "containerd" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(place.folder / "containerd" / name, folder / "containerd" / name)


def successor_of(name: str) -> str:
    """The name of Topolet's image of the next version."""
    return f"{name.rpartition(':')[0]}:{SUCCESSOR}"


def image_name() -> str:
    """The name of Topolet's image in the manifests."""
    (daemons,) = (each for each in objects("base") if each["kind"] == "DaemonSet")
    return str(daemons["spec"]["template"]["spec"]["containers"][0]["image"])
