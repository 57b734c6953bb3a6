"""What a hook changes, in the bytes of a CRI request."""

from __future__ import annotations

from agent.hooks import cri, wire
from agent.hooks.changes import UNCHANGED, CarriedNode, Changes
from agent.model.notifications import RequestedResources
from agent.model.visible import Mount
from agent.proto import cri_pb2 as pb


def test_nothing_to_change_is_no_new_request() -> None:
    assert cri.create_request_with(b"whatever came", UNCHANGED) is None
    assert cri.update_request_with(b"whatever came", UNCHANGED) is None


def test_everything_that_a_hook_may_set_stands_behind_what_came() -> None:
    message = pb.CreateContainerRequest(pod_sandbox_id="s")
    message.config.envs.add(key="A", value=b"1")
    message.config.mounts.add(container_path="/m", host_path="/theirs")
    changes = Changes(
        "1-2",
        "0",
        512,
        20_000,
        1 << 20,
        (Mount("/ours", "/m"), Mount("/ours", "/n")),
        (("A", "2"), ("B", "3")),
        ("vendor.example/gpu=0",),
    )
    changed = cri.create_request_with(message.SerializeToString(), changes)
    config = pb.CreateContainerRequest.FromString(changed or b"").config
    linux = config.linux.resources
    assert (linux.cpuset_cpus, linux.cpuset_mems, linux.cpu_shares) == ("1-2", "0", 512)
    assert (linux.cpu_quota, linux.cpu_period) == (20_000, 100_000)
    assert linux.memory_limit_in_bytes == 1 << 20
    assert [(each.container_path, each.host_path) for each in config.mounts] == [
        ("/m", "/theirs"),
        ("/n", "/ours"),
    ]
    assert [(each.key, each.value) for each in config.envs] == [
        ("A", b"2"),
        ("B", b"3"),
    ]
    assert [each.name for each in config.CDI_devices] == ["vendor.example/gpu=0"]


def test_what_is_asked_in_the_end() -> None:
    asked = RequestedResources("0-3", "0", 512, -1, 7)
    assert UNCHANGED.over(asked) == asked
    assert Changes(cpuset="1", shares=2).over(asked) == RequestedResources("1", "0", 2, -1, 7)


def test_what_is_removed_goes_and_everything_else_stays_byte_for_byte() -> None:
    message = pb.CreateContainerRequest(pod_sandbox_id="s")
    config = message.config
    config.metadata.name = "main"
    config.envs.add(key="KEPT", value=b"\xff")
    config.envs.add(key="A", value=b"1")
    config.envs.add(key="A", value=b"2")
    config.mounts.add(container_path="/gone", host_path="/dev/null")
    config.mounts.add(container_path="/kept", host_path="/gone")
    config.devices.add(container_path="/dev/gone", host_path="/dev/gone")
    config.devices.add(container_path="/dev/kept", host_path="/dev/kept", permissions="r")
    config.annotations["cdi.k8s.io/changed"] = "old"
    config.annotations["cdi.k8s.io/gone"] = "old"
    config.annotations["kept"] = "old"
    config.CDI_devices.add(name="v/c=gone")
    config.CDI_devices.add(name="v/c=kept")
    config.linux.resources.cpu_shares = 7
    message.sandbox_config.annotations["cdi.k8s.io/gone"] = "the pod's own"
    unknown = wire.patch((cri.CONFIG, 99), "config's") + wire.patch((98,), "request's")
    raw = message.SerializeToString() + unknown
    changes = Changes(
        environment=(("A", "3"),),
        mounts=(Mount("/dev/null", "/new", writable=True),),
        nodes=(CarriedNode("/dev/new", "/dev/new", "rwm"),),
        annotations=(("cdi.k8s.io/changed", "new"), ("cdi.k8s.io/gone", None)),
        cdi_devices=("v/c=new",),
        removed_mounts=("/gone",),
        removed_nodes=(CarriedNode("/dev/gone", "/dev/gone"),),
        removed_cdi_devices=("v/c=gone",),
    )
    changed = pb.CreateContainerRequest.FromString(cri.create_request_with(raw, changes) or b"")

    expected = pb.CreateContainerRequest.FromString(raw)
    config = expected.config
    del config.envs[1:], config.mounts[0], config.devices[0], config.CDI_devices[0]
    config.envs.add(key="A", value=b"3")
    config.mounts.add(container_path="/new", host_path="/dev/null")
    config.devices.add(container_path="/dev/new", host_path="/dev/new", permissions="rwm")
    config.annotations["cdi.k8s.io/changed"] = "new"
    del config.annotations["cdi.k8s.io/gone"]
    config.CDI_devices.add(name="v/c=new")
    assert changed == expected


def test_what_is_not_there_is_no_change() -> None:
    message = pb.CreateContainerRequest(pod_sandbox_id="s")
    message.config.CDI_devices.add(name="v/c=kept")
    changes = Changes(removed_cdi_devices=("v/c=gone",))
    assert cri.create_request_with(message.SerializeToString(), changes) is None
