"""The changes of a hook, written into the bytes of a CRI request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hooks import carriers, cpuset
from agent.hooks.carriers import Carried
from agent.hooks.cpuset import Override
from agent.hooks.requests import UNCHANGED, CarriedNode, Changes
from agent.model import wire
from agent.model.devices.visibility import MOUNT_ROOT, Mount, VisibleGpu
from agent.model.linux_resources import NO_QUOTA, NO_RESOURCES, LinuxResources
from agent.model.snapshot import Wanted
from agent.proto import cri_pb2 as pb
from agent.proxy import gate as cri
from agent.proxy.gate import carried


def test_no_changes_give_no_new_request() -> None:
    assert cri.create_request_with(b"any bytes", UNCHANGED) is None
    assert cri.update_request_with(b"any bytes", UNCHANGED) is None


def test_the_kubelets_swap_limit_is_kept() -> None:
    """LimitedSwap is a value of cgroup v2; on v1 the kubelet limits the sum of memory and swap."""
    linux = pb.LinuxContainerResources(
        memory_limit_in_bytes=1 << 30,
        memory_swap_limit_in_bytes=1 << 30,
        unified={"memory.swap.max": "4096", "memory.oom.group": "1"},
    )
    new = pb.CreateContainerRequest()
    new.config.linux.resources.CopyFrom(linux)
    update = pb.UpdateContainerResourcesRequest(container_id="c", linux=linux)
    changes = Changes(LinuxResources("1-2", quota=NO_QUOTA))
    created = cri.create_request_with(new.SerializeToString(), changes) or b""
    updated = cri.update_request_with(update.SerializeToString(), changes) or b""
    linux.cpuset_cpus, linux.cpu_quota = "1-2", -1
    assert pb.CreateContainerRequest.FromString(created).config.linux.resources == linux
    assert pb.UpdateContainerResourcesRequest.FromString(updated).linux == linux


def test_removed_fields_are_removed_and_everything_else_stays_byte_for_byte() -> None:
    message = pb.CreateContainerRequest(pod_sandbox_id="s")
    config = message.config
    config.metadata.name = "main"
    config.envs.add(key="KEPT", value=b"\xff")
    config.envs.add(key="A", value=b"1")
    config.envs.add(key="A", value=b"2")
    config.mounts.add(container_path="/removed", host_path="/dev/null")
    config.mounts.add(container_path="/kept", host_path="/removed")
    config.devices.add(container_path="/dev/removed", host_path="/dev/removed")
    config.devices.add(container_path="/dev/kept", host_path="/dev/kept", permissions="r")
    config.annotations["cdi.k8s.io/changed"] = "old"
    config.annotations["cdi.k8s.io/removed"] = "old"
    config.annotations["kept"] = "old"
    config.CDI_devices.add(name="v/c=removed")
    config.CDI_devices.add(name="v/c=kept")
    config.linux.resources.cpu_shares = 7
    message.sandbox_config.annotations["cdi.k8s.io/removed"] = "the pod's own"
    unknown = wire.patch((cri.CONFIG, 99), "config's") + wire.patch((98,), "request's")
    raw = message.SerializeToString() + unknown
    changes = Changes(
        environment=(("A", "3"),),
        mounts=(Mount("/dev/null", "/new", writable=True),),
        nodes=(CarriedNode("/dev/new", "/dev/new", "rwm"),),
        annotations=(("cdi.k8s.io/changed", "new"), ("cdi.k8s.io/removed", None)),
        cdi_devices=("v/c=new",),
        removed_mounts=("/removed",),
        removed_nodes=(CarriedNode("/dev/removed", "/dev/removed"),),
        removed_cdi_devices=("v/c=removed",),
    )
    changed = pb.CreateContainerRequest.FromString(cri.create_request_with(raw, changes) or b"")

    expected = pb.CreateContainerRequest.FromString(raw)
    config = expected.config
    del config.envs[1:], config.mounts[0], config.devices[0], config.CDI_devices[0]
    config.envs.add(key="A", value=b"3")
    config.mounts.add(container_path="/new", host_path="/dev/null")
    config.devices.add(container_path="/dev/new", host_path="/dev/new", permissions="rwm")
    config.annotations["cdi.k8s.io/changed"] = "new"
    del config.annotations["cdi.k8s.io/removed"]
    config.CDI_devices.add(name="v/c=new")
    assert changed == expected


@pytest.mark.parametrize(
    ("path", "read_only", "in_use"),
    [
        ("/x", True, False),
        ("/run/topolet", False, True),
        ("/run", False, False),
        ("/run/", True, True),
        ("/var/run", True, True),
    ],
)
def test_folder_is_mounted_read_only_unless_the_path_is_in_use(
    path: str, read_only: bool, in_use: bool
) -> None:
    message = pb.CreateContainerRequest()
    message.config.metadata.name = "main"
    message.config.mounts.add(container_path=path, host_path="/y", readonly=read_only)
    raw = message.SerializeToString()
    two_cpus = Wanted(LinuxResources("1-2"), exclusive=True)
    changes = cpuset.changes(cri.create_container(raw), Override(two_cpus), "/state/g/main")
    changed = cri.create_request_with(raw, changes)
    assert changed is not None
    config = pb.CreateContainerRequest.FromString(changed).config
    assert config.linux.resources.cpuset_cpus == "1-2"
    assert config.mounts[0] == message.config.mounts[0]
    mounts = [pb.Mount(container_path="/run/topolet", host_path="/state/g/main", readonly=True)]
    assert list(config.mounts)[1:] == ([] if in_use else mounts)
    assert "/run/topolet" in cri.mounted(changed)


def test_removing_absent_fields_changes_nothing() -> None:
    message = pb.CreateContainerRequest(pod_sandbox_id="s")
    message.config.CDI_devices.add(name="v/c=kept")
    changes = Changes(removed_cdi_devices=("v/c=removed",))
    assert cri.create_request_with(message.SerializeToString(), changes) is None


CREATE_CPUSET, CREATE_QUOTA = (*cri.CREATE_RESOURCES, 6), (*cri.CREATE_RESOURCES, 2)
text = st.text(max_size=20)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def create_requests(draw: st.DrawFn) -> pb.CreateContainerRequest:
    request = pb.CreateContainerRequest(pod_sandbox_id=draw(text))
    if draw(st.booleans()):
        request.config.metadata.name = draw(text)
        request.config.args.extend(draw(st.lists(text, max_size=3)))
    if draw(st.booleans()):
        request.config.linux.resources.cpu_quota = draw(int64)
        request.config.linux.resources.cpuset_cpus = draw(text)
        request.config.linux.resources.cpuset_mems = draw(text)
    if draw(st.booleans()):
        request.sandbox_config.metadata.uid = draw(text)
        request.sandbox_config.linux.cgroup_parent = draw(text)
        for key, value in draw(st.dictionaries(text, text, max_size=3)).items():
            request.sandbox_config.annotations[key] = value
    return request


@given(create_requests())
def test_fields_are_read_as_by_protobuf(request_: pb.CreateContainerRequest) -> None:
    raw = request_.SerializeToString()
    assert wire.text(raw, 1) == request_.pod_sandbox_id
    assert wire.text(wire.merged(raw, 2, 1), 1) == request_.config.metadata.name
    resources = request_.config.linux.resources
    assert wire.text(wire.merged(raw, 2, 15, 1), 6) == resources.cpuset_cpus
    assert wire.number(wire.merged(raw, 2, 15, 1), 2) == resources.cpu_quota
    assert wire.string_map(wire.merged(raw, 3), 7) == dict(request_.sandbox_config.annotations)


@given(create_requests(), text, int64)
def test_a_patch_changes_one_field_and_nothing_else(
    request_: pb.CreateContainerRequest, cpus: str, quota: int
) -> None:
    raw = request_.SerializeToString()
    resources = request_.config.linux.resources
    resources.cpuset_cpus = cpus
    raw += wire.patch(CREATE_CPUSET, cpus)
    assert pb.CreateContainerRequest.FromString(raw) == request_
    resources.cpu_quota = quota
    raw += wire.patch(CREATE_QUOTA, quota)
    assert pb.CreateContainerRequest.FromString(raw) == request_


@given(create_requests(), create_requests())
def test_split_messages_are_read_merged(
    one: pb.CreateContainerRequest, other: pb.CreateContainerRequest
) -> None:
    raw = one.SerializeToString() + other.SerializeToString()
    merged = pb.CreateContainerRequest.FromString(raw)
    cpuset = merged.config.linux.resources.cpuset_cpus
    assert wire.text(wire.merged(raw, 2, 15, 1), 6) == cpuset


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x0a\x05abc", "field 1 runs past the end"),
        (b"\x0a", "cut off"),
        (b"\x08" + b"\xff" * 11, "cut off"),
        (b"\x0b", "wire type 3 of field 1"),
        (b"\x00\x00", "field 0"),
        (b"\x0d\x00", "field 1 runs past"),
    ],
)
def test_malformed_message_is_named(raw: bytes, message: str) -> None:
    with pytest.raises(wire.WireError, match=message):
        list(wire.fields(raw))


def test_string_that_is_not_utf8_is_an_error() -> None:
    with pytest.raises(wire.WireError, match="UTF-8"):
        wire.text(b"\x0a\x01\xff", 1)


@given(create_requests(), st.booleans())
def test_a_filter_removes_only_the_filtered_entries(
    request_: pb.CreateContainerRequest, drops: bool
) -> None:
    request_.config.mounts.add(container_path="/a")
    request_.config.mounts.add(container_path="/b")
    raw = request_.SerializeToString() + wire.patch((99,), "unknown")

    def keeps(field: int, payload: bytes) -> bool:
        return not (drops and field == 7 and wire.text(payload, 1) == "/a")

    filtered = wire.filtered(raw, keeps, 2)
    expected = pb.CreateContainerRequest.FromString(raw)
    if drops:
        del expected.config.mounts[0]
    assert pb.CreateContainerRequest.FromString(filtered) == expected
    assert drops or filtered == raw


def test_huge_pages_of_a_request() -> None:
    # Topolet's subset of the CRI does not have HugepageLimit.
    limits = [(1, "2MB", 4 << 20), (2, "1GB", 0), (3, "64K", 1), (4, "4 pages", 1), (5, "GB", 1)]
    raw = b"".join(
        cri.patch((*cri.CREATE_RESOURCES, 8), cri.patch((1,), size) + cri.patch((2,), limit))
        for _, size, limit in limits
    )
    assert cri.create_container(raw).requested.hugepages == {2 << 20: 4 << 20, 64 << 10: 1}
    assert cri.create_container(b"").requested == NO_RESOURCES


def test_every_carrier_of_a_request_is_read() -> None:
    message = pb.CreateContainerRequest(pod_sandbox_id="s")
    config = message.config
    config.envs.add(key="A", value=b"\xff no text")
    config.envs.add(key="NVIDIA_VISIBLE_DEVICES", value=b"GPU-1,GPU-2")
    config.envs.add(key="NVIDIA_VISIBLE_DEVICES", value=b"all")
    config.envs.add(key="LD_PRELOAD", value=b"/lib/preload.so")
    config.mounts.add(container_path="/data", host_path="/srv")
    config.mounts.add(container_path=f"{MOUNT_ROOT}/GPU-3", host_path="/dev/null")
    config.devices.add(host_path="/dev/nvidia1", container_path="/dev/n", permissions="rw")
    config.annotations["cdi.k8s.io/plugin_1"] = "nvidia.com/gpu=GPU-4,other.example/nic=0"
    config.annotations["note"] = "nvidia.com/gpu=9"
    config.CDI_devices.add(name="nvidia.com/gpu=GPU-5")
    config.linux.security_context.privileged = True

    found = carried(message.SerializeToString())
    assert found == Carried(
        environment=("GPU-1,GPU-2", "all"),
        preload="/lib/preload.so",
        mounts=(f"{MOUNT_ROOT}/GPU-3",),
        annotations=(("cdi.k8s.io/plugin_1", "nvidia.com/gpu=GPU-4,other.example/nic=0"),),
        cdi_devices=("nvidia.com/gpu=GPU-5",),
        nodes=(CarriedNode("/dev/nvidia1", "/dev/n", "rw"),),
        privileged=True,
    )
    assert sorted(found.names()) == ["GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "all"]


def test_paths_are_normalised() -> None:
    message = pb.CreateContainerRequest()
    message.config.mounts.add(container_path=f"{MOUNT_ROOT}/./GPU-1", host_path="/dev//null")
    message.config.mounts.add(container_path=f"/{MOUNT_ROOT}/GPU-2", host_path="//dev/null")
    message.config.devices.add(host_path="/dev/../dev/nvidia1", container_path="/dev/nvidia1")
    message.config.devices.add(host_path="//dev/nvidia2", container_path="/dev/nvidia2")
    found = carried(message.SerializeToString())
    assert list(found.names()) == ["GPU-1", "GPU-2"]
    assert [each.host_path for each in found.nodes] == ["/dev/nvidia1", "/dev/nvidia2"]


def test_a_mount_names_a_card_whatever_its_source() -> None:
    """A runtime follows symbolic links of the host, which may lead to /dev/null."""
    message = pb.CreateContainerRequest()
    message.config.mounts.add(container_path=f"{MOUNT_ROOT}/GPU-1", host_path="/etc/masked.service")
    message.config.mounts.add(container_path="/data", host_path="/dev/null")
    assert carried(message.SerializeToString()).mounts == (f"{MOUNT_ROOT}/GPU-1",)


@pytest.mark.parametrize(
    ("host_path", "serving"),
    [
        ("/var/lib/kubelet/device-plugins", True),
        ("/var/lib/k0s/kubelet//device-plugins/", True),
        ("/var/lib/kubelet/pod-resources", True),
        ("/var/lib/kubelet/pod-resources/kubelet.sock", True),
        ("/run/topolet/pod-resources", True),
        ("/etc/kubernetes/node-feature-discovery/features.d", True),
        ("/var/lib/kubelet", False),
        ("/var/lib/kubelet/plugins/csi", False),
        ("/srv/device-plugins", False),
        ("/srv/kubelet/device-plugins", False),
        ("/var/lib/kubelet/device-plugins-of-a-tenant", False),
        # An emptyDir `kubelet`, mounted with a subPath in a container `device-plugins`.
        ("/var/lib/kubelet/pods/u/volume-subpaths/kubelet/device-plugins/0", False),
        (
            "/var/lib/k0s/kubelet/pods/u/volumes/kubernetes.io~empty-dir/kubelet/pod-resources",
            False,
        ),
    ],
)
def test_only_mounts_of_the_kubelets_own_folders_serve_device_plugins(
    host_path: str, serving: bool
) -> None:
    message = pb.CreateContainerRequest()
    message.config.mounts.add(container_path="/x", host_path=host_path)
    paths = carried(message.SerializeToString()).serving
    assert carriers.serves(paths, "/var/lib/k0s/kubelet") is serving


def test_a_request_without_devices_has_no_carriers() -> None:
    message = pb.CreateContainerRequest(pod_sandbox_id="s")
    message.config.envs.add(key="PATH", value=b"/bin")
    found = carried(message.SerializeToString())
    assert found == Carried()
    assert not list(found.names())


@pytest.mark.parametrize(
    ("kind", "is_gpu"),
    [
        ("nvidia.com/gpu", True),
        ("k8s.device-plugin.nvidia.com/gpu", True),
        ("runtime.nvidia.com/gpu", True),
        ("management.nvidia.com/gpu", True),
        ("nvidia.com/imex-channel", False),
        ("nvidia.com/gds", False),
        ("notnvidia.com/gpu", False),
        ("amd.com/gpu", False),
        ("gpu", False),
    ],
)
def test_kinds_that_are_gpus(kind: str, is_gpu: bool) -> None:
    assert carriers.is_gpu_kind(kind) is is_gpu


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("GPU-1", "GPU-1"),
        ("0", "0"),
        ("cdi/nvidia.com/gpu/0", "nvidia.com/gpu=0"),
        ("cdi/other.example/nic/0", None),
        ("imex/0", None),
    ],
)
def test_mounts_that_name_gpus(path: str, name: str | None) -> None:
    assert carriers.mounted_name(f"{MOUNT_ROOT}/{path}") == name
    if name is not None:
        assert carriers.mount_path(name) == f"{MOUNT_ROOT}/{path}"
    assert carriers.mounted_name(f"{MOUNT_ROOT}//./{path}/") == name
    assert carriers.mounted_name(f"/elsewhere/{path}") is None


CARD = VisibleGpu("GPU-abc", "1")
PART = VisibleGpu("MIG-def", "1:0")


@pytest.mark.parametrize(
    ("gpu", "replaced", "name"),
    [
        (CARD, ["GPU-x"], "GPU-abc"),
        (CARD, ["all"], "GPU-abc"),
        (CARD, [], "GPU-abc"),
        (CARD, ["0"], "1"),
        (CARD, ["all", "0"], "1"),
        (CARD, ["0", "GPU-x"], "GPU-abc"),
        (CARD, ["gpu0"], "gpu1"),
        (PART, ["0:1"], "1:0"),
        (PART, ["mig0:1"], "mig1:0"),
        (PART, ["gpu0"], "mig1:0"),
        (VisibleGpu("GPU-abc"), ["0"], None),
        (VisibleGpu("GPU-abc"), ["strange"], "GPU-abc"),
    ],
)
def test_a_name_has_the_form_of_those_it_replaces(
    gpu: VisibleGpu, replaced: list[str], name: str | None
) -> None:
    assert carriers.name_like(replaced, gpu) == name


@pytest.mark.parametrize(
    ("name", "refers"),
    [
        ("1", True),
        ("gpu1", True),
        ("11", False),
        ("GPU-abc::2", True),
        ("GPU-abc", True),
        ("GPU-a", True),
        ("GPU-b", False),
        ("gpu-ABC", True),
        ("gp", True),
        ("01", True),
        ("gpu01", True),
        ("1:0", False),
        ("all", False),
        ("", False),
        ("0" * 5000 + "1", True),
        ("1" * 5000, False),
        ("1:" + "0" * 5000, False),
    ],
)
def test_gpus_that_a_name_refers_to(name: str, refers: bool) -> None:
    assert carriers.refers(name, "GPU-abc", "1") is refers


@pytest.mark.parametrize(
    ("path", "is_card"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidia15", True),
        ("/dev/nvidia-caps/nvidia-cap12", True),
        ("/dev/nvidiactl", False),
        ("/dev/nvidia-uvm", False),
        ("/dev/nvidia-modeset", False),
        ("/dev/nvidia-caps-imex-channels/channel0", False),
    ],
)
def test_nodes_of_cards(path: str, is_card: bool) -> None:
    assert carriers.is_card_node(path) is is_card


@pytest.mark.parametrize(
    ("number", "is_instance"), [("0", False), ("2", False), ("3", True), ("9" * 5000, True)]
)
def test_nodes_of_instances(number: str, is_instance: bool) -> None:
    assert carriers.is_instance_node(f"/dev/nvidia-caps/nvidia-cap{number}") is is_instance


def test_nodes_of_other_devices() -> None:
    assert carriers.is_node_of("rdma", "/dev/infiniband/uverbs12")
    assert not carriers.is_node_of("rdma", "/dev/infiniband/rdma_cm")
    assert carriers.is_node_of("fpga", "/dev/dfl-fme.0")
    assert not carriers.is_node_of("unknown", "/dev/infiniband/uverbs0")
