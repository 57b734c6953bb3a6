"""Devices in the snapshot, as decided from the node's pods."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agent.allocate.visibility.pod_devices import UNDECIDED, Isolation
from agent.hooks import admission
from agent.hooks.requests import CreateContainer
from agent.model.devices.device_files import CardFiles, DeviceFiles
from agent.model.devices.holding import DeviceHolding, Form, HoldingSource
from agent.model.devices.visibility import VisibleGpu
from agent.model.notifications import PodAnnounced
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.apiobjects import CONFIG_HASH, CONFIG_MIRROR, ApiContainer, ApiPod, Phase
from agent.model.pod.pods import Pod
from agent.model.settings.agent import AgentSettings
from agent.model.snapshot import Snapshot
from agent.model.verdict import Wait
from agent.node.device_visibility import policy, prepare, visibility
from tests.builders import pod, running

FILES = DeviceFiles(
    tuple(CardFiles(VisibleGpu(f"GPU-{each}", str(each)), each) for each in range(2))
)
FIRST = '{"gpu": [{"minor": 0}]}'
BOTH = '{"gpu": [{"minor": 0}, {"minor": 1}]}'


def allocated(uid: str, text: str, created_at: int = 0, *, is_running: bool = False) -> Pod:
    return msgspec.structs.replace(
        pod(uid, "LS", containers=(running(f"c-{uid}"),) if is_running else ()),
        annotations={DEVICE_ALLOCATED: text},
        created_at=created_at,
    )


def api_pod(uid: str, **cards: int) -> ApiPod:
    containers = tuple(
        ApiContainer(name, limits={"nvidia.com/gpu": count} if count else {})
        for name, count in cards.items()
    )
    return ApiPod(uid, "ns", uid, "n", Phase.RUNNING, {}, {}, None, 0, containers=containers)


def holding(uid: str, device: str, form: Form = Form.WHOLE, part: str = "") -> DeviceHolding:
    return DeviceHolding(
        uid, "main", "nvidia.com/gpu", "gpu", device, form, part, {}, HoldingSource.CHECKPOINT
    )


def test_requests_divide_a_pods_cards() -> None:
    decided = visibility([allocated("p", BOTH)], [api_pod("p", a=1, b=1, c=0)], FILES).pods["p"]
    seen = {name: [each.uuid for each in of.gpus or ()] for name, of in decided.containers.items()}
    assert seen == {"a": ["GPU-0"], "b": ["GPU-1"]}
    assert decided.each.gpus == ()


def test_a_mirror_pod_of_a_user_changes_no_devices_of_the_pod_whose_uid_it_names() -> None:
    """With the requests of the mirror pod, another container would get the cards, or none."""
    mirror = msgspec.structs.replace(
        api_pod("p", c=2),
        uid="mirror",
        name="mirror",
        annotations={CONFIG_MIRROR: "p", CONFIG_HASH: "p"},
        controlling_node="n-uid",
    )
    target = api_pod("p", a=1, b=1, c=0)
    expected = visibility([allocated("p", BOTH)], [target], FILES)
    for api_pods in ([target, mirror], [mirror, target]):
        assert visibility([allocated("p", BOTH)], api_pods, FILES) == expected


def test_a_running_pod_keeps_its_card_despite_an_older_claim() -> None:
    pods = [
        allocated("older", FIRST, 1),
        allocated("running", FIRST, 2, is_running=True),
        allocated("late", FIRST, 3),
    ]
    decided = visibility(pods, [], FILES)
    assert {uid: each.each.refused for uid, each in decided.pods.items()} == {
        "running": "",
        "older": "GPU-0 belongs to pod ns/running",
        "late": "GPU-0 belongs to pod ns/running",
    }
    assert [each.holders for each in decided.node.held] == [("running",), ()]


def test_a_holder_keeps_its_card_despite_a_new_claim_of_an_older_pod() -> None:
    pods = [allocated("older", FIRST, 1, is_running=True), allocated("holder", FIRST, 2)]
    decided = visibility(pods, [], FILES, before={"GPU-0": frozenset({"holder"})})
    assert {uid: each.each.refused for uid, each in decided.pods.items()} == {
        "holder": "",
        "older": "GPU-0 belongs to pod ns/holder",
    }


def test_a_card_that_a_plugin_assigned_is_not_assigned_again() -> None:
    pods = [allocated("p", FIRST), pod("plugins", "LS")]
    decided = visibility(pods, [], FILES, [holding("plugins", "GPU-0")])
    assert decided.pods["p"].each.refused == "GPU-0 belongs to pod ns/plugins"
    for no_conflict in (holding("p", "GPU-0"), holding("plugins", "GPU-0", Form.OPEN)):
        assert not visibility(pods, [], FILES, [no_conflict]).pods["p"].each.refused


def test_an_instance_with_a_replica_from_a_plugin_is_not_assigned_again() -> None:
    instances = tuple(VisibleGpu(f"MIG-{each}", f"0:{number}") for number, each in enumerate("ab"))
    files = DeviceFiles((CardFiles(VisibleGpu("GPU-0", "0"), 0, True, instances),))
    pods = [allocated(each, f'{{"gpu": [{{"minor": 0, "id": "MIG-{each}"}}]}}') for each in "ab"]
    shared = holding("plugins", "GPU-0", Form.INSTANCE, "MIG-a::1")
    decided = visibility([*pods, pod("plugins", "LS")], [], files, [shared])
    assert {uid: each.each.refused for uid, each in decided.pods.items()} == {
        "a": "MIG-a belongs to pod ns/plugins",
        "b": "",
    }


def test_gpus_are_hidden_if_there_are_any() -> None:
    assert visibility([], [], FILES).node.unrequested_gpus == "hide"
    assert visibility([], [], DeviceFiles()).node.unrequested_gpus == "leave"
    assert visibility([], [], DeviceFiles(None)).node.unrequested_gpus == "hide"


def test_before_the_first_decision_only_pods_with_devices_wait() -> None:
    snapshot = Snapshot(1, 0, "b", False, {}, (), {}, {}, devices=UNDECIDED.node)
    announced = PodAnnounced("p", "ns", "p", {}, {DEVICE_ALLOCATED: FIRST}, "")
    assert isinstance(admission.decided_devices(CreateContainer(announced, "main"), snapshot), Wait)
    other = PodAnnounced("q", "ns", "q", {}, {}, "")
    assert admission.decided_devices(CreateContainer(other, "main"), snapshot) is None


_IN_A_MOUNT_NAMESPACE = """
mkdir -m 755 "$2/vgpulock"
[ -z "$3" ] || mount -t tmpfs -o "mode=755,$3" tmpfs "$2/vgpulock"
exec "$1" -c '
import os, sys
from agent.model.settings.agent import AgentSettings
from agent.node.device_visibility import policy, prepare
settings = AgentSettings(hami_core_library="/opt/vgpu.so", state_dir=sys.argv[1])
isolation = prepare(policy(settings)).isolation
print(oct(os.stat(isolation.lock_folder).st_mode & 0o7777), isolation.problem)
' "$2"
"""


@pytest.mark.parametrize(
    ("mounted", "mode", "problem"),
    [
        ("size=1M,nr_inodes=1024", "0o1777", ""),
        ("", "0o755", "is not a file system of its own"),
        ("size=1G,nr_inodes=1024", "0o755", "has more than 16777216 bytes"),
        ("size=1M,nr_inodes=1M", "0o755", "has room for more than 16384 files"),
        ("size=1M,nr_inodes=0", "0o755", "has room for more than 16384 files"),
    ],
)
def test_no_pod_fills_the_state_folder_by_its_lock_folder(
    tmp_path: Path, mounted: str, mode: str, problem: str
) -> None:
    command = ["unshare", "-rm", "sh", "-ec", _IN_A_MOUNT_NAMESPACE, "sh"]
    done = subprocess.run(
        [*command, sys.executable, str(tmp_path), mounted],
        capture_output=True,
        text=True,
        check=True,
    )
    found_mode, _, found = done.stdout.strip().partition(" ")
    assert found_mode == mode
    assert found.endswith(problem)
    assert bool(found) == bool(problem)


def test_a_node_without_the_library_has_no_lock_folder(tmp_path: Path) -> None:
    settings_policy = policy(AgentSettings(state_dir=str(tmp_path)))
    assert prepare(settings_policy) == settings_policy
    assert not (tmp_path / "vgpulock").exists()


def test_settings_of_device_visibility() -> None:
    without = policy(AgentSettings())
    assert (without.unrequested_gpus, without.cdi_kind, without.isolation.library) == (
        "hide",
        "",
        "",
    )
    settings = AgentSettings(
        unrequested_gpus="deny", gpu_cdi_kind="nvidia.com/gpu", hami_core_library="/opt/vgpu.so"
    )
    settings_policy = policy(settings)
    assert settings_policy.isolation == Isolation("/opt/vgpu.so", "/run/topolet/vgpulock")
    node = visibility([], [], FILES, by=settings_policy).node
    assert (node.unrequested_gpus, node.cdi_kind) == ("deny", "nvidia.com/gpu")
