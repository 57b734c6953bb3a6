from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cgroup.hierarchy import CgroupError, Hierarchy
from agent.cgroup.names import (
    absolute,
    container_groups,
    from_cgroups_path,
    of_pods,
    own_root,
    pod_group,
    slice_group,
)

UID = "0a1b2c3d-1111-2222-3333-444455556666"
UID_ = UID.replace("-", "_")
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"


@pytest.mark.parametrize(
    ("unit", "group"),
    [
        ("a.slice", "/a.slice"),
        ("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice"),
        ("-.slice", "/"),
        (BURSTABLE.rpartition("/")[2], BURSTABLE),
        ("a--b.slice", None),
        ("-a.slice", None),
        ("a-.slice", None),
        (".slice", None),
        ("a.scope", None),
        ("a/b.slice", None),
        ("", None),
        ("a-" * 100_000 + "a.slice", None),
        ("a" * 250 + ".slice", None),
    ],
)
def test_slice_expansion(unit: str, group: str | None) -> None:
    assert slice_group(unit) == group


@pytest.mark.parametrize(
    ("parent", "prefixes", "groups"),
    [
        (f"/kubepods/pod{UID}", ("cri-containerd",), (f"/kubepods/pod{UID}/ID",)),
        (f"/kubepods/pod{UID}", ("crio",), (f"/kubepods/pod{UID}/crio-ID",)),
        (
            f"kubepods/pod{UID}/",
            ("cri-containerd", "crio", "docker"),
            (f"/kubepods/pod{UID}/ID", f"/kubepods/pod{UID}/crio-ID"),
        ),
        (
            f"kubepods-burstable-pod{UID_}.slice",
            ("cri-containerd", "docker"),
            (f"{BURSTABLE}/cri-containerd-ID.scope", f"{BURSTABLE}/docker-ID.scope"),
        ),
        (BURSTABLE, ("crio",), (f"{BURSTABLE}/crio-ID.scope",)),
        (BURSTABLE, ("nerd",), (f"{BURSTABLE}/nerd-ID.scope",)),
        ("-.slice", ("crio",), ("/crio-ID.scope",)),
        ("a--b.slice", ("crio",), ()),
        ("/", ("cri-containerd",), ("/ID",)),
        ("", ("cri-containerd",), ("/k8s.io/ID", "/system.slice/cri-containerd-ID.scope")),
        ("", ("crio",), ("/crio/crio-ID", "/system.slice/crio-ID.scope")),
    ],
)
def test_candidates(parent: str, prefixes: tuple[str, ...], groups: tuple[str, ...]) -> None:
    assert container_groups(parent, "ID", prefixes) == groups


@pytest.mark.parametrize(
    ("path", "group"),
    [
        (f"/kubepods/besteffort/pod{UID}/ID", f"/kubepods/besteffort/pod{UID}/ID"),
        ("//k8s.io//ID/", "/k8s.io/ID"),
        (
            f"kubepods-burstable-pod{UID_}.slice:cri-containerd:ID",
            f"{BURSTABLE}/cri-containerd-ID.scope",
        ),
        (f"{BURSTABLE}:crio:ID", f"{BURSTABLE}/crio-ID.scope"),
        (":cri-containerd:ID", "/system.slice/cri-containerd-ID.scope"),
        ("-.slice:docker:ID", "/docker-ID.scope"),
        ("-:docker:ID", "/docker-ID.scope"),
        ("a.slice::a-b.slice", "/a.slice/a-b.slice"),
        ("a.slice::ID", "/a.slice/ID.scope"),
        ("a.slice:x:", None),
        ("a:x:ID", None),
        ("a--b.slice:x:ID", None),
        ("kubepods/relative/ID", None),
        ("/kubepods/../ID", None),
        ("", None),
    ],
)
def test_oci_cgroups_path(path: str, group: str | None) -> None:
    assert from_cgroups_path(path) == group


@pytest.mark.parametrize(
    "group",
    [
        "/kubepods",
        "/kubepods/burstable/podX/ID",
        "/kubepods.slice",
        BURSTABLE,
        f"{BURSTABLE}/cri-containerd-ID.scope/its/own",
        "/mine/kubepods/besteffort/podX",
        "/mine.slice/mine-kubepods.slice/mine-kubepods-podX.slice",
        "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice",
        "/system.slice/crio-ID.scope",
        "/system.slice/cri-containerd-ID.scope",
        "/k8s.io/ID",
        "/kubepods/podX (deleted)",
    ],
)
def test_groups_of_pods(group: str) -> None:
    assert of_pods(group)


@pytest.mark.parametrize(
    "group",
    [
        "/",
        "/init.scope",
        "/system.slice/kubelet.service",
        "/system.slice/snap.microk8s.daemon-kubelite.service",
        "/podruntime/kubelet",
        "/kubelet.slice",
        "/system.slice/docker-ID.scope",
        "/docker/ID",
        "/user.slice/user-1000.slice/session-3.scope",
        "/kubepods-like",
        "/my-kubepods",
        "/system.slice/kubepods.service",
    ],
)
def test_groups_of_the_host(group: str) -> None:
    assert not of_pods(group)


@pytest.mark.parametrize(
    ("cgroup_parent", "group"),
    [
        (f"/kubepods/burstable/pod{UID}", f"/kubepods/burstable/pod{UID}"),
        (f"mine/kubepods/pod{UID}/", f"/mine/kubepods/pod{UID}"),
        (BURSTABLE.rpartition("/")[2], BURSTABLE),
        (f"/x/{BURSTABLE.rpartition('/')[2]}", BURSTABLE),
        ("/kubepods/burstable", None),
        (f"/kubepods/pod{UID}/x", None),
        ("kubepods-burstable.slice", None),
        (f"/../pod{UID}", None),
        ("", None),
    ],
)
def test_group_of_a_pod(cgroup_parent: str, group: str | None) -> None:
    assert pod_group(cgroup_parent, UID) == group


OWN = "/kubepods.slice/kubepods-podA.slice/cri-containerd-A.scope"


@pytest.mark.parametrize(
    ("path", "own", "group"),
    [
        ("/system.slice/kubelet.service", "/", "/system.slice/kubelet.service"),
        ("/", "/", "/"),
        ("/", OWN, OWN),
        ("/below", OWN, f"{OWN}/below"),
        ("/../../../system.slice/kubelet.service", OWN, "/system.slice/kubelet.service"),
        ("/../../kubepods-podB.slice/x", OWN, "/kubepods.slice/kubepods-podB.slice/x"),
        ("/../../..", OWN, "/"),
        ("/../../../../x", OWN, None),
        ("/../x/../y", OWN, None),
        ("x", "/", None),
        ("", "/", None),
    ],
)
def test_a_group_path_in_the_hosts_namespace(path: str, own: str, group: str | None) -> None:
    assert absolute(path, own) == group


def test_without_a_mount_of_the_agents_namespace_its_root_is_unknown(tmp_path: Path) -> None:
    hierarchy = _hierarchy()
    assert own_root(hierarchy, str(tmp_path)) is None
    (tmp_path / "mountinfo").write_text(
        "1 1 0:2 /../.. /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate\n"
        "1 1 0:2 / /nowhere/a\\040b rw shared:1 - cgroup2 cgroup rw\nx\n"
        "1 1 0:2 / /nul\0in-the-path rw - cgroup2 cgroup rw\n"
    )
    assert own_root(hierarchy, str(tmp_path)) is None


def test_outside_a_namespace_the_agents_root_is_the_root() -> None:
    assert own_root(_hierarchy()) == "/"


_SCRIPT_IN_NAMESPACE = """
import os, subprocess, sys
import types
from agent.cgroup.names import absolute, own_root
kind, path, own, other = sys.argv[1:]
options = ["-t", "cgroup2"] if kind == "2" else ["-t", "cgroup", "-o", "cpuset"]
os.makedirs(own, exist_ok=True)
subprocess.run(["mount", *options, "none", own], check=True)
root = own_root(types.SimpleNamespace(version=int(kind), path=path))
for pid in ("self", other):
    lines = open(f"/proc/{pid}/cgroup").read().splitlines()
    named = "0::" if kind == "2" else ":cpuset:"
    (path,) = [each.split(":", 2)[2] for each in lines if named in each]
    print(path, absolute(path, root), sep="\\n")
"""


@contextlib.contextmanager
def _group(hierarchy: types.SimpleNamespace, group: str) -> Iterator[None]:
    """With CPUs and memory, which v1 requires before a process may enter."""
    folder = Path(hierarchy.path + group)
    folder.mkdir()
    try:
        if hierarchy.version == 1:
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((folder.parent / file).read_text())
        yield
    finally:
        folder.rmdir()


def _mounted() -> list[types.SimpleNamespace]:
    """The hierarchies with the cpuset controller, and v2 next to v1."""
    found = []
    with contextlib.suppress(CgroupError):
        it = Hierarchy()
        found.append(types.SimpleNamespace(version=it.version, path=it.path))
    if Path("/sys/fs/cgroup/unified/cgroup.procs").exists():
        found.append(types.SimpleNamespace(version=2, path="/sys/fs/cgroup/unified"))
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("hierarchy", _mounted(), ids=lambda each: f"v{each.version}")
def test_the_kernel_shows_groups_relative_to_the_readers_namespace(
    tmp_path: Path, hierarchy: types.SimpleNamespace
) -> None:
    top = f"/topolet-test-{uuid.uuid4().hex[:8]}"
    inner = f"{top}/kubepods"
    with (
        _group(hierarchy, top),
        _group(hierarchy, inner),
        _group(hierarchy, f"{top}/other"),
        subprocess.Popen(
            ["sh", "-c", f"echo $$ >{hierarchy.path}{top}/other/cgroup.procs; echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as other,
    ):
        assert other.stdout is not None
        other.stdout.readline()
        script = (
            f"echo $$ >{hierarchy.path}{inner}/cgroup.procs && "
            'exec unshare --cgroup --mount --propagation=private "$@"'
        )
        arguments = [str(hierarchy.version), hierarchy.path, str(tmp_path / "own"), str(other.pid)]
        done = subprocess.run(
            ["sh", "-c", script, "sh", sys.executable, "-c", _SCRIPT_IN_NAMESPACE, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.stdout.splitlines() == ["/", inner, "/../other", f"{top}/other"], done.stderr


def _hierarchy() -> Hierarchy:
    try:
        return Hierarchy()
    except CgroupError as error:
        pytest.skip(str(error))
