"""The final values of a container, from the runtime's message."""

from __future__ import annotations

from agent.guard.request import ValidatedContainer
from agent.proto import nri_pb2 as pb


def created(
    container: pb.Container | None = None,
    adjust: pb.ContainerAdjustment | None = None,
    pod: pb.PodSandbox | None = None,
) -> ValidatedContainer:
    return ValidatedContainer(
        pb.ValidateContainerAdjustmentRequest(
            pod=pod, container=container, adjust=adjust
        ).SerializeToString()
    )


def cpus(text: str) -> pb.LinuxResources:
    return pb.LinuxResources(cpu=pb.LinuxCPU(cpus=text))


def test_an_adjustment_overrides_the_request() -> None:
    container = pb.Container(name="c", linux=pb.LinuxContainer(resources=cpus("0-3")))
    adjusted = pb.ContainerAdjustment(linux=pb.LinuxContainerAdjustment(resources=cpus("2")))
    assert created(container).cpuset == "0-3"
    assert created(container, adjusted).cpuset == "2"
    assert created(container, pb.ContainerAdjustment()).cpuset == "0-3"
    assert created().cpuset == ""


def test_the_pod_is_read() -> None:
    pod = pb.PodSandbox(name="p", namespace="ns", uid="u", labels={"l": "1"})
    pod.annotations["a"] = "2"
    pod.linux.cgroup_parent = "/kubepods/podu"
    container = pb.Container(name="c")
    container.linux.resources.cpu.shares.value = 2048
    read = created(container, pod=pod)
    assert (read.title, read.uid, read.name, read.shares) == ("ns/p", "u", "c", 2048)
    assert (read.labels, read.annotations) == ({"l": "1"}, {"a": "2"})
    assert read.cgroup_parent == "/kubepods/podu"
    assert created(pod=pb.PodSandbox(name="p", namespace="ns")).uid == "ns/p"


def test_devices_are_those_after_the_adjustment() -> None:
    container = pb.Container(
        env=[b"X=\xff", b"NVIDIA_VISIBLE_DEVICES=GPU-1,GPU-2"],
        annotations={"cdi.k8s.io/a": "nvidia.com/gpu=GPU-4", "other": "GPU-9"},
    )
    container.CDI_devices.add(name="nvidia.com/gpu=GPU-3")
    container.mounts.add(destination="/var/run/nvidia-container-devices/GPU-5")
    for path in ("/dev/a", "/dev/b"):
        container.linux.devices.add(path=path)
    before = created(container)
    assert before.nodes == {"/dev/a", "/dev/b"}
    assert {name[-5:] for name in before.named} == {f"GPU-{number}" for number in range(1, 6)}
    adjusted = pb.ContainerAdjustment(
        env=[pb.KeyValue(key="NVIDIA_VISIBLE_DEVICES", value="GPU-6")],
        mounts=[pb.Mount(destination="-/var/run/nvidia-container-devices/GPU-5")],
    )
    adjusted.linux.devices.add(path="-/dev/a")
    adjusted.linux.devices.add(path="/dev/c")
    after = created(container, adjusted)
    assert after.nodes == {"/dev/b", "/dev/c"}
    assert {name[-5:] for name in after.named} == {"GPU-3", "GPU-4", "GPU-6"}
