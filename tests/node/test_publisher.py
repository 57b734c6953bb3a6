from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.allocate.pools import decide
from agent.allocate.reserved_cpus import KubeletCpus
from agent.allocate.visibility.pod_devices import DeviceVisibility, PodVisibility
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import CpuSet
from agent.model.devices.visibility import NodeDevice, NodeVisibility, Visibility, VisibleGpu
from agent.model.linux_resources import NO_QUOTA, LinuxResources
from agent.model.pod.pods import Container, ContainerState
from agent.model.snapshot import PodWanted, Snapshot, Wanted
from agent.node.publisher import Publisher
from tests.builders import machine, pod
from tests.node.decisions import PODS, decision, publish


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.json"


def read(path: Path) -> Snapshot:
    return snapshots.decode(path.read_bytes())


def test_contents_of_the_snapshot(path: Path) -> None:
    publish(Publisher(str(path), "boot"), blocked={"a": "ns/b holds 1"}, listed_at=5)
    written = read(path)
    assert (written.generation, written.listed_at, written.boot_id) == (1, 5, "boot")
    assert {each: of.cpuset for each, of in written.containers.items()} == {
        "c1": "1",
        "c2": "0,2-3",
        "c3": "0,2-3",
    }
    assert {uid: each.each.blocked for uid, each in written.pods.items()} == {
        "a": "ns/b holds 1",
        "b": "",
    }
    assert path.stat().st_mode & 0o777 == 0o644


def test_snapshot_is_written_after_a_change_or_on_request(path: Path) -> None:
    publisher = Publisher(str(path), "boot")
    publish(publisher)
    publish(publisher, listed_at=2)
    assert (publisher.generation, read(path).listed_at) == (1, 1)
    publish(publisher, listed_at=3, fresh=True)
    assert (publisher.generation, read(path).listed_at) == (2, 3)
    publish(publisher, PODS[:1], listed_at=4)
    assert (publisher.generation, read(path).listed_at) == (3, 4)


def test_generations_continue_after_a_restart_and_a_reboot(path: Path) -> None:
    first = Publisher(str(path), "boot")
    publish(first)
    publish(first, fresh=True)
    second = Publisher(str(path), "boot")
    assert second.generation == 2
    publish(second)
    assert read(path).generation == 2, "nothing changed"
    third = Publisher(str(path), "next boot")
    publish(third)
    assert (read(path).generation, read(path).boot_id) == (3, "next boot")


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot_id":"\xff"}', b"[" * 100_000])
def test_a_torn_file_is_replaced(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    publisher = Publisher(str(path), "boot")
    assert publisher.generation == 0
    publish(publisher)
    assert read(path).generation == 1


def test_a_file_beyond_the_bound_is_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(Publisher(str(path), "boot"))
    monkeypatch.setattr(snapshots, "MAX_BYTES", 10)
    publisher = Publisher(str(path), "boot")
    assert publisher.generation == 0
    publish(publisher)
    monkeypatch.undo()
    assert read(path).generation == 1


def test_removed_file_is_written_again(path: Path) -> None:
    publisher = Publisher(str(path), "boot")
    publish(publisher)
    path.unlink()
    publish(publisher)
    assert read(path).containers["c1"].cpuset == "1"


def test_failed_write_is_repeated_in_the_next_pass(path: Path) -> None:
    folder = path.parent / "state"
    publisher = Publisher(str(folder / "snapshot.json"), "boot")
    with pytest.raises(FileNotFoundError):
        publish(publisher)
    assert publisher.generation == 0
    folder.mkdir()
    publish(publisher)
    assert read(folder / "snapshot.json").generation == 1


def test_owners_are_known_to_the_next_agent_of_the_same_boot(path: Path) -> None:
    publish(Publisher(str(path), "boot"))
    assert Publisher(str(path), "boot").scheduled_owners == {"a": CpuSet([1])}
    assert Publisher(str(path), "next boot").scheduled_owners == {}


def test_offline_cpus_of_an_owner_are_known_to_the_next_agent(path: Path) -> None:
    pods, owned = (pod("a", "LSE", "1-2"), pod("b")), {"a": CpuSet([1, 2])}
    for offline in ("2", "1-2"):
        publisher = Publisher(str(path), "boot")
        decided = decide(machine(offline=offline), pods, KubeletCpus(), owned, {})
        publisher.publish(decided, pods, {}, False, 1, fresh=False)
        assert Publisher(str(path), "boot").scheduled_owners == owned


def test_memory_nodes_of_running_containers_are_omitted_if_pages_would_migrate(path: Path) -> None:
    bound = Wanted(LinuxResources("1", mems="0", shares=5))
    one = msgspec.structs.replace(
        PODS[0],
        containers=(
            Container("running", "a", ContainerState.RUNNING),
            Container("created", "b", ContainerState.CREATED),
        ),
    )
    each = msgspec.structs.replace(
        decision((one,)), pods={one.uid: PodWanted(one.title, one.qos, bound)}
    )
    publisher = Publisher(str(path), "boot")
    for stays, running in ((False, bound), (True, Wanted(LinuxResources("1", shares=5)))):
        publisher.publish(each, (one,), {}, False, 1, fresh=True, memory_stays=stays)
        assert read(path).containers == {"running": running, "created": bound}


def test_visible_devices_are_written_only_for_pods_that_have_them(path: Path) -> None:
    publish(Publisher(str(path), "boot"))
    without = path.read_bytes()
    assert b"visible" not in without
    assert b"devices" not in without
    card = Visibility((VisibleGpu("GPU-1", "0"),))
    visibility = DeviceVisibility(
        {"a": PodVisibility(Visibility(()), {"main": card}), "deleted": PodVisibility(card)},
        NodeVisibility((NodeDevice("GPU-1", holders=("a",)),), "hide"),
    )
    publish(Publisher(str(path), "boot"), visibility=visibility)
    written = read(path)
    assert written.devices == visibility.node
    assert written.pods["a"].of("main").visible == card
    assert written.pods["a"].of("main").cpuset == "1"
    assert written.pods["a"].of("other").visible == Visibility(())
    assert written.pods["b"].of("main").visible is None
    assert written.containers["c1"] == Wanted(LinuxResources("1", quota=NO_QUOTA), exclusive=True)
    assert "deleted" not in written.pods


def test_holders_of_devices_are_known_to_the_next_agent_of_the_same_boot(path: Path) -> None:
    visible = PodVisibility(Visibility((VisibleGpu("GPU-1"),)), devices=frozenset({"GPU-1"}))
    devices = (NodeDevice("GPU-1", holders=("a",)), NodeDevice("GPU-2"))
    publisher = Publisher(str(path), "boot")
    publish(publisher, visibility=DeviceVisibility({"a": visible}, NodeVisibility(devices)))
    restarted = Publisher(str(path), "boot")
    for each in (publisher, restarted):
        assert {device: set(uids) for device, uids in each.device_holders.items()} == {
            "GPU-1": {"a"}
        }
    assert Publisher(str(path), "another boot").device_holders == {}
    # Nothing is decided before the driver's report, then the devices, then the pod is deleted.
    publish(restarted, visibility=DeviceVisibility({}, NodeVisibility()))
    assert restarted.device_holders == {"GPU-1": {"a"}}
    publish(
        restarted,
        visibility=DeviceVisibility(
            {"a": PodVisibility(Visibility(refused="lost"))}, NodeVisibility()
        ),
    )
    assert restarted.device_holders == {}
    publish(publisher, PODS[1:], visibility=DeviceVisibility({}, NodeVisibility()))
    assert publisher.device_holders == {}
