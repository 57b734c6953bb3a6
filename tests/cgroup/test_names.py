import pytest

from agent.cgroup.names import (
    container_groups,
    from_cgroups_path,
    of_pods,
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
