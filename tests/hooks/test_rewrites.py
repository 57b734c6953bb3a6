"""What a hook changes, in the bytes of a CRI request."""

from __future__ import annotations

from agent.hooks import requests, rewrites, wire
from agent.hooks.changes import UNCHANGED, Changes, Mount
from agent.model.doorbell import Asked
from agent.proto import cri_pb2 as pb


def test_nothing_to_change_is_no_new_request() -> None:
    assert rewrites.create_container(b"whatever came", UNCHANGED) is None
    assert rewrites.update_container(b"whatever came", UNCHANGED) is None


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
    changed = rewrites.create_container(message.SerializeToString(), changes)
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
        ("A", b"1"),
        ("A", b"2"),
        ("B", b"3"),
    ]
    assert (
        wire.text(wire.merged(changed or b"", *requests.CDI_DEVICES), 1) == "vendor.example/gpu=0"
    )


def test_what_is_asked_in_the_end() -> None:
    asked = Asked("0-3", "0", 512, -1, 7)
    assert UNCHANGED.over(asked) == asked
    assert Changes(cpuset="1", shares=2).over(asked) == Asked("1", "0", 2, -1, 7)
