"""The fields of a request that name devices, and the names of GPUs."""

from __future__ import annotations

import pytest

from agent.hooks import carriers
from agent.hooks.carriers import Carried
from agent.hooks.requests import CarriedNode
from agent.model.devices.visibility import MOUNT_ROOT, VisibleGpu
from agent.proto import cri_pb2 as pb
from agent.proxy.gate import carried


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
