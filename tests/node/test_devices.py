"""The agent's view of devices, on a generated sysfs, with a real child process and a fake
driver."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from agent.allocate.device_holders.reported_devices import Carriers, of_carriers
from agent.discover.gpuwatcher import GpuTiming, GpuWatcher
from agent.kube.store import EmbeddedStore
from agent.model.devices import device_object, interconnect
from agent.model.devices.device_files import NO_FILES, DeviceFiles
from agent.model.devices.device_object import GPU_PARTITIONS, Condition
from agent.model.devices.gpus import Ancestor, pci_address
from agent.model.devices.holding import DEVICES_CHECKPOINTS, HoldingSource, ReportedDevices
from agent.model.devices.interconnect import GPU_LINKS, GpuLink
from agent.model.nrt import node_status
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.pod.annotations import DEVICE_ALLOCATED
from agent.model.pod.apiobjects import ApiNode
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.node.device_listing import Published, published
from agent.node.devices import DeviceState, DeviceView, device_view
from agent.node.gpu_health import GpuActions
from agent.node.gpus import GPU_DRIVER, RELEASED
from agent.node.kubelet_view import DeviceCheckpointView
from agent.node.network_devices import NetworkDevices
from agent.node.node_resource_topology import DeviceReport, ReportValues, Reserved, build
from agent.node.outbox import deliver
from tests.builders import machine, pod
from tests.discover import buses, fakenvml, gpumachines
from tests.discover.fakenvml import FakeDriver, Machine
from tests.waiting import DEADLINE_SECONDS, eventually

NVIDIA = {"class": "0x030200\n", "vendor": "0x10de\n", "numa_node": "0\n"}
TOPOLOGY = machine(2, 2)
HEALTHY = "Healthy"


def no_child() -> GpuWatcher:
    pytest.fail("the GPU child process was started")


def view_of(
    root: Path,
    watch: Callable[[], GpuWatcher] = no_child,
    *,
    withhold: bool = False,
    files: DeviceFiles = NO_FILES,
    network: NetworkDevices | None = None,
) -> DeviceView:
    checkpoint = DeviceCheckpointView(str(root / "kubelet"))
    return DeviceView(
        str(root),
        watch,
        GpuActions({}),
        checkpoint,
        withhold=withhold,
        files=files,
        network=network,
    )


def observed(
    view: DeviceView,
    published: Published = Published(),  # noqa: B008
    api_node: ApiNode = ApiNode(),  # noqa: B008
    pods: tuple[Pod, ...] = (),
    reported: Sequence[ReportedDevices] = (),
) -> DeviceState:
    seen = view.observe(TOPOLOGY, published, api_node, pods, reported)
    assert seen is not None
    return seen


def assigned(uid: str, *names: str, resource: str = "nvidia.com/gpu") -> ReportedDevices:
    """Devices that the kubelet assigned to a pod."""
    return ReportedDevices(uid, "main", resource, names, HoldingSource.CHECKPOINT)


def allocated(uid: str, *entries: dict[str, object]) -> Pod:
    """A pod to which a scheduler allocated GPUs."""
    text = msgspec.json.encode({"gpu": entries}).decode()
    return msgspec.structs.replace(pod(uid), annotations={DEVICE_ALLOCATED: text})


class Node:
    """A machine and the agent's view of its devices."""

    def __init__(self, folder: Path, driver: Machine) -> None:
        self.root = folder / "root"
        (self.root / "sys").mkdir(parents=True)
        self.driver = FakeDriver(folder, driver)
        self.woken = threading.Event()
        self.view = self.new_view()
        self.published = Published()
        self.api_node = ApiNode()
        self.pods: tuple[Pod, ...] = ()
        self.seen = DeviceState()

    def new_view(self, *, withhold: bool = False, files: DeviceFiles = NO_FILES) -> DeviceView:
        """The view of a restarted agent."""
        timing = GpuTiming(
            period_seconds=0.05,
            answer_seconds=DEADLINE_SECONDS,
            retry_seconds=0.02,
            max_retry_seconds=0.1,
        )
        root, environment = str(self.driver.root), self.driver.environment

        def watch() -> GpuWatcher:
            return GpuWatcher(self.woken.set, root, timing, environment)

        return view_of(self.root, watch, withhold=withhold, files=files)

    def card(self, bus: str) -> None:
        address = pci_address(bus)
        buses.add_function(self.root, f"pci{address.rpartition(':')[0]}/{address}", NVIDIA)

    def observe(self, reported: Sequence[ReportedDevices] = ()) -> DeviceReport:
        self.seen = observed(self.view, self.published, self.api_node, self.pods, reported)
        return self.seen.report

    def until(self, check: Callable[[DeviceReport], object]) -> DeviceReport:
        last = self.observe()

        def checked() -> bool:
            nonlocal last
            last = self.observe()
            return bool(check(last))

        eventually("devices", checked)
        return last


@contextlib.contextmanager
def running(folder: Path, driver: Machine) -> Iterator[Node]:
    """A machine whose cards are in PCI and have this driver."""
    if why := fakenvml.missing():
        pytest.skip(why)
    node = Node(folder, driver)
    for card in driver.cards:
        node.card(card.bus)
    yield node
    node.view.close()


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path, gpumachines.mixed()) as node:
        yield node


def health(report: DeviceReport) -> list[bool]:
    return [each.healthy for each in report.devices]


def test_a_machine_without_cards_starts_no_child(tmp_path: Path) -> None:
    view = view_of(tmp_path)
    assert view.observe(TOPOLOGY, Published(), ApiNode(), ()) == DeviceState()
    view.close()


def test_cards_are_devices_with_their_topology(mixed: Node) -> None:
    report = mixed.until(lambda report: report.devices)
    assert [each.type for each in report.devices] == ["gpu"] * len(report.devices)
    for device in report.devices:
        assert device.topology is not None
        assert device.topology.node == 0
        assert device.resources["koordinator.sh/gpu-core"] == 100
    assert report.gpus.vendor == "nvidia"
    assert report.gpus.driver_version == "550.163.01"


def test_a_card_that_only_pci_lists_is_reported(
    mixed: Node, caplog: pytest.LogCaptureFixture
) -> None:
    mixed.card("00000000:AF:00.0")
    mixed.until(lambda report: report.devices)
    assert mixed.seen.missing == ("0000:af:00.0",)
    text = "devices: GPU at 0000:af:00.0: PCI lists it, its driver does not list it"
    assert text in caplog.text
    cards = gpumachines.mixed().cards
    third = dataclasses.replace(cards[0], uuid=gpumachines.uuid(2), minor=2, bus="00000000:AF:00.0")
    mixed.driver.set_machine(Machine((*cards, third)))
    mixed.until(lambda report: len(report.devices) == 3)
    assert mixed.seen.missing == ()


def test_a_driver_that_cannot_be_queried_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, gpumachines.mixed().with_values(init=18)) as node:
        node.until(lambda _: node.seen.fault)
    assert (node.seen.fault, node.seen.report.devices) == ("DriverMismatch", ())
    assert "devices: GPUs: DriverMismatch: nvmlInit: " in caplog.text


def test_published_devices_are_kept_until_the_driver_answers(mixed: Node) -> None:
    first = mixed.until(lambda report: report.devices)
    mixed.view.close()
    mixed.driver.set_machine(gpumachines.mixed().with_values(init=9))
    mixed.view = mixed.new_view()
    labels = node_status.gpu_labels(first.gpus, first.devices)
    body = device_object.encode("n", first.devices, labels, first.annotations)
    mixed.published, _ = published(body)
    before = mixed.observe()
    assert before.devices == first.devices
    assert node_status.gpu_labels(before.gpus, before.devices) == labels != {}
    unhealthy = mixed.until(lambda report: not any(health(report)))
    assert len(unhealthy.devices) == len(first.devices)
    (condition,) = (each for each in unhealthy.devices[0].conditions if each.type == HEALTHY)
    assert condition.reason == "DriverNotLoaded"
    mixed.driver.set_machine(gpumachines.mixed())
    mixed.until(lambda report: all(health(report)))


def test_cards_removed_while_no_agent_ran_are_dropped(mixed: Node, tmp_path: Path) -> None:
    first = mixed.until(lambda report: report.devices)
    empty = view_of(tmp_path / "other")
    (tmp_path / "other").mkdir()
    assert observed(empty, Published(first.devices)).report.devices == ()


def test_a_card_is_cordoned_by_the_nodes_annotation(mixed: Node) -> None:
    first = mixed.until(lambda report: report.devices)
    uuid = first.devices[0].uuid
    mixed.api_node = ApiNode(annotations={"topolet.io/cordoned-gpus": uuid})
    assert health(mixed.observe()) == [False, *[True] * (len(first.devices) - 1)]
    mixed.api_node = ApiNode()
    assert all(health(mixed.observe()))


def test_a_cordon_of_an_unknown_card_is_reported(
    mixed: Node, caplog: pytest.LogCaptureFixture
) -> None:
    first = mixed.until(lambda report: report.devices)
    mixed.api_node = ApiNode(annotations={"topolet.io/cordoned-gpus": "GPU-typo, 1"})
    mixed.observe()
    for name in ("gpu-typo", "1"):
        text = f"devices: Node: annotation topolet.io/cordoned-gpus: unknown GPU {name!r}"
        assert text in caplog.text
    assert health(first) == health(mixed.observe())


def test_the_driver_is_released_and_opened_by_the_nodes_annotation(
    mixed: Node, caplog: pytest.LogCaptureFixture
) -> None:
    key = "topolet.io/gpu-driver"
    first = mixed.until(lambda report: report.devices)
    mixed.api_node = ApiNode(annotations={key: "gone"})
    mixed.until(lambda report: all(health(report)))
    assert f"devices: Node: annotation {key}: 'gone' is not 'released'" in caplog.text
    assert mixed.driver.child()
    mixed.api_node = ApiNode(annotations={key: "released"})
    report = mixed.until(lambda report: not any(health(report)))
    assert mixed.driver.child() is None
    for device in report.devices:
        reported = {each.type: each.message for each in device.conditions}
        assert reported == {
            HEALTHY: "device is healthy",
            "Cordoned": f"annotation {key}: the driver is released",
        }
    restarted = mixed.new_view()
    seen = observed(restarted, Published(report.devices), mixed.api_node)
    assert health(seen.report) == health(report)
    restarted.close()
    mixed.driver.set_machine(gpumachines.mixed().with_values(driver="570.86.15"))
    assert mixed.driver.child() is None
    mixed.api_node = ApiNode()
    mixed.until(lambda report: all(health(report)) and report.gpus.driver_version == "570.86.15")
    assert [each.uuid for each in mixed.observe().devices] == [each.uuid for each in first.devices]


@pytest.fixture
def dgx1(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path, gpumachines.dgx1()) as node:
        yield node


def test_links_and_partitions_are_published(dgx1: Node) -> None:
    report = dgx1.until(lambda report: len(report.devices) == 8)
    partitions = msgspec.json.decode(report.annotations[GPU_PARTITIONS])
    assert len(partitions["8"]) == 1
    links = interconnect.decode_links(report.annotations)
    assert len(links) == 28
    linked = {pair: each.links for pair, each in links.items() if each.links}
    assert linked == gpumachines.DGX1_LINKS
    assert links[0, 3] == GpuLink(Ancestor.SYSTEM, 2, 50_000)
    assert links[4, 5] == GpuLink(Ancestor.SWITCH, 1, 25_000)


def test_published_links_are_kept_until_the_driver_answers(dgx1: Node) -> None:
    first = dgx1.until(lambda report: len(report.devices) == 8)
    dgx1.view.close()
    dgx1.driver.set_machine(gpumachines.dgx1().with_values(init=9))
    dgx1.view = dgx1.new_view()
    body = device_object.encode("n", first.devices, {}, first.annotations)
    dgx1.published, problems = published(body)
    assert problems == ()
    again = dgx1.observe()
    for key in (GPU_LINKS, GPU_PARTITIONS):
        assert again.annotations[key] == first.annotations[key]


HALF_OF_THE_FIRST: dict[str, object] = {
    "minor": 0,
    "resources": {"koordinator.sh/gpu-core": "50"},
}


def test_allocations_are_counted_and_invalid_annotations_are_reported_once(
    mixed: Node, caplog: pytest.LogCaptureFixture
) -> None:
    mixed.until(lambda report: report.devices)
    torn = msgspec.structs.replace(pod("b"), annotations={DEVICE_ALLOCATED: "{"})
    mixed.pods = (allocated("a", HALF_OF_THE_FIRST), torn)
    for _ in range(3):
        assert mixed.observe().held == {("gpu", 0): {"koordinator.sh/gpu-core": 50}}
    records = [each for each in caplog.records if "pod ns/b" in each.getMessage()]
    assert len(records) == 1


def test_a_card_that_the_kubelet_assigned_is_in_use_and_published(mixed: Node) -> None:
    first = mixed.until(lambda report: report.devices)
    uuid = first.devices[0].uuid
    reported, mixed.pods = [assigned("a", uuid)], (pod("a"),)
    report = mixed.observe(reported)
    assert report.held == {("gpu", 0): first.devices[0].resources}
    (entry,) = msgspec.json.decode(report.annotations[DEVICES_CHECKPOINTS])
    assert (entry["podUID"], entry["deviceIDs"]) == ("a", [uuid])
    assert [each.uid for each in mixed.seen.existing] == ["a"]
    mixed.pods = ()
    assert (mixed.observe(reported).held, mixed.seen.existing) == ({}, ())


def test_allocated_cards_can_be_withheld_from_the_device_object(
    mixed: Node, tmp_path: Path
) -> None:
    mixed.view.close()
    mixed.view = mixed.new_view(withhold=True)
    first = mixed.until(lambda report: report.devices)
    mixed.pods = (pod("a"),)

    def objects(*reported_devices: ReportedDevices) -> tuple[list[int], int, int]:
        """The gpu-core of the Device object, the Node and the NodeResourceTopology."""
        devices = mixed.observe(reported_devices)
        values = ReportValues("n", TOPOLOGY, {}, (), (), Reserved(), NodeConfiguration(), devices)
        store = EmbeddedStore(str(tmp_path / "objects"))
        store.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
        report = build(values)
        deliver(store, report)
        (node, device) = (store.get(kind, "n") or {} for kind in ("Node", "Device"))
        name = "koordinator.sh/gpu-core"
        return (
            [int(each["resources"][name]) for each in device["spec"]["devices"]],
            int(node["status"]["allocatable"][name]),
            sum(zone.resources[name].available for zone in report.topology.zones if zone.node == 0),
        )

    count = len(first.devices)
    whole, free, zone = objects()
    assert (whole, free) == ([100] * count, 100 * count)
    assert objects(assigned("a", first.devices[1].uuid)) == (
        [100, 0, *[100] * (count - 2)],
        free - 100,
        zone - 100,
    )
    assert objects() == (whole, free, zone), "its pod released it"


def test_a_card_of_two_pods_is_reported(mixed: Node, caplog: pytest.LogCaptureFixture) -> None:
    first = mixed.until(lambda report: report.devices)
    mixed.pods = (allocated("a", HALF_OF_THE_FIRST), pod("b"))
    reported_devices = [
        ReportedDevices(uid, "main", "", (first.devices[0].uuid,), HoldingSource.CONTAINER)
        for uid in ("a", "b")
    ]
    for _ in range(2):
        mixed.observe(reported_devices)
    lines = [each.getMessage() for each in caplog.records if "belongs to" in each.getMessage()]
    uuid = first.devices[0].uuid
    assert lines == [
        f"devices: pod ns/b has gpu {uuid}, which belongs to pod ns/a (source: container)"
    ]


def test_a_pod_that_only_names_every_card_marks_none_as_used(
    mixed: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Any pod can set the environment variable."""
    caplog.set_level("INFO")
    first = mixed.until(lambda report: report.devices)
    names = tuple(each.uuid for each in first.devices if each.type == "gpu")
    variable = ("NVIDIA_VISIBLE_DEVICES", ",".join(names))
    shown = of_carriers("a", "main", Carriers(environment=(variable,)))
    mixed.pods = (pod("a"),)
    for _ in range(2):
        report = mixed.observe(shown)
        assert (report.held, mixed.seen.existing) == ({}, ())
        assert DEVICES_CHECKPOINTS not in report.annotations
    lines = [each.getMessage() for each in caplog.records if "do not count" in each.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(
        "pod a, main: environment: it names devices that neither the kubelet"
    )
    assert lines[0].endswith(f"({len(names)} in all)")


def test_a_running_pod_keeps_its_card_after_a_change_of_its_annotation(
    mixed: Node,
) -> None:
    first = mixed.until(lambda report: len(report.devices) > 1)
    one, other = first.devices[:2]
    amounts = {"koordinator.sh/gpu-core": "100"}
    # This minor now belongs to another card.
    entry = {"minor": one.minor, "id": other.uuid, "resources": amounts}
    mixed.pods = (allocated("a", entry),)
    of_side = ReportedDevices("a", "side", "", (one.uuid,), HoldingSource.CONTAINER)
    report = mixed.observe([assigned("a", one.uuid), of_side])
    assert [(each.device, each.source) for each in mixed.seen.existing] == [
        (one.uuid, HoldingSource.CONTAINER)
    ]
    assert report.held == {
        ("gpu", one.minor): one.resources,
        ("gpu", other.minor): {"koordinator.sh/gpu-core": 100},
    }


def test_devices_continue_from_the_published_object(tmp_path: Path) -> None:
    """Network cards keep their minors, GPUs their conditions."""
    root = tmp_path / "root"
    (root / "sys").mkdir(parents=True)
    view = view_of(root)
    assert view.observe(TOPOLOGY, None, ApiNode(), ()) == DeviceState()
    nic = buses.add_function(root, "pci0000:17/0000:17:00.0")
    buses.write_files(nic, {"infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"})
    view.rescan()
    assert view.observe(TOPOLOGY, None, ApiNode(), ()) is None
    seen = observed(view, Published(gone={"rdma": {"0000:17:00.0": 5}}))
    assert [each.minor for each in seen.report.devices] == [5]
    assert view.observe(TOPOLOGY, None, ApiNode(), ()) == seen, "the published object is read once"


def test_a_network_device_in_the_namespace_of_a_pod_is_held_and_healthy(tmp_path: Path) -> None:
    root, address = tmp_path / "root", "0000:17:00.0"
    files = {"driver@": "../mlx5_core", "infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"}
    nic = buses.add_function(root, f"pci0000:17/{address}", {"net/eth0/mtu": "", **files})
    holder = msgspec.structs.replace(
        pod("holder"),
        sandboxes=(Container("s", "", ContainerState.RUNNING),),
        containers=(Container("c", "main", ContainerState.RUNNING),),
    )
    read = {"s": (address, "")}
    network = NetworkDevices(str(root), lambda _: ("s", 7), lambda object_id, _: read[object_id])
    view = view_of(root, network=network)
    assert observed(view).existing == ()
    for part in ("net", "infiniband"):
        shutil.rmtree(nic / part)
    view.rescan()
    unheld = observed(view)
    assert [each.healthy for each in unheld.report.devices] == [False]
    seen = observed(view, pods=(holder,))
    (held,) = seen.existing
    assert (held.uid, held.container, held.device) == ("holder", "main", address)
    assert seen.network == {("holder", "main"): (address,)}
    assert DEVICES_CHECKPOINTS in seen.report.annotations
    seen = observed(view, pods=(holder,))
    assert [each.healthy for each in seen.report.devices] == [True]


def test_cards_are_not_queried_before_their_published_conditions_are_known(mixed: Node) -> None:
    first = mixed.until(lambda report: report.devices)
    uuid, time = first.devices[0].uuid, "2026-01-01T00:00:00Z"
    reset_required = Condition("XID48", "True", "Reset", "XID 48: reset", time)
    unhealthy = msgspec.structs.replace(
        first.devices[0], conditions=(reset_required,), healthy=False
    )
    mixed.view.close()
    mixed.view = mixed.new_view()
    assert mixed.view.observe(TOPOLOGY, None, ApiNode(), ()) is None
    mixed.published = Published((unhealthy,))
    report = mixed.until(lambda report: len(report.devices) == len(first.devices))
    conditions = {
        each.uuid: [condition.type for condition in each.conditions] for each in report.devices
    }
    assert "XID48" in conditions[uuid]


def test_setting_the_clock_does_not_count_as_a_boot(mixed: Node) -> None:
    """The kernel computes the time of the boot from the current time."""
    stat = mixed.root / "proc" / "stat"
    stat.parent.mkdir()
    stat.write_text("cpu 1\nbtime 1000000000\n")
    mixed.until(lambda report: report.devices)
    mixed.driver.event(0, 79)
    mixed.until(lambda report: False in health(report))
    stat.write_text("cpu 1\nbtime 9000000000\n")
    readings = {id(mixed.seen.readings): mixed.seen.readings}

    def read_again(report: DeviceReport) -> bool:
        readings[id(mixed.seen.readings)] = mixed.seen.readings
        return len(readings) > 3

    assert False in health(mixed.until(read_again))


@pytest.mark.parametrize("text", ["9" * 5_000, "", "soon"])
def test_an_invalid_time_of_boot_is_ignored(mixed: Node, text: str) -> None:
    stat = mixed.root / "proc" / "stat"
    stat.parent.mkdir()
    stat.write_text(f"cpu 1\nbtime {text}\n")
    mixed.until(lambda report: report.devices)


def test_a_restarted_agent_has_device_files_that_are_not_visible_yet(
    mixed: Node, tmp_path: Path
) -> None:
    """Minors and instances of cards are unknown until the driver reports them, and a network
    card is not visible while its pod runs."""
    mixed.until(lambda report: report.devices)
    nic = buses.add_function(mixed.root, "pci0000:17/0000:17:00.0")
    files = {
        "infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "infiniband_verbs/uverbs0/ibdev": "mlx5_0\n",
    }
    buses.write_files(nic, files)
    mixed.view.rescan()
    mixed.until(lambda report: len(report.devices) == 3)
    before = mixed.seen.files
    mixed.published = mixed.view.state
    mixed.view.close()
    (nic / "infiniband").rename(tmp_path / "elsewhere")
    mixed.view = mixed.new_view(files=before)
    mixed.api_node = ApiNode(annotations={GPU_DRIVER: RELEASED})
    mixed.observe()
    assert mixed.seen.files == before
    assert mixed.view.files == before
    mixed.api_node = ApiNode()
    mixed.until(lambda report: report.gpus.driver_version and mixed.seen.readings)
    assert mixed.seen.files == before


@pytest.mark.parametrize("held", [True, False])
def test_a_network_card_in_its_pods_namespace_stays_healthy(tmp_path: Path, held: bool) -> None:
    """Its interface is moved to the pod's network namespace."""
    root = tmp_path / "root"
    (root / "sys").mkdir(parents=True)
    nic = buses.add_function(root, "pci0000:17/0000:17:00.0")
    buses.write_files(nic, {"infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"})
    view = view_of(root)
    names = ("0000:17:00.0",) if held else ()
    reported = [assigned("a", *names, resource="example.com/nic")]

    def health_of_nic() -> list[bool]:
        return health(observed(view, pods=(pod("a"),), reported=reported).report)

    assert health_of_nic() == [True]
    (nic / "infiniband").rename(tmp_path / "elsewhere")
    view.rescan()
    assert health_of_nic() == [held]


def test_nothing_is_published_before_pci_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent that has no free file descriptors does not report devices as lost."""
    nic = buses.add_function(tmp_path, "pci0000:17/0000:17:00.0")
    buses.write_files(nic, {"infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"})
    view = view_of(tmp_path)

    def no_descriptors(path: str) -> list[str]:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", no_descriptors)
        assert view.observe(TOPOLOGY, Published(), ApiNode(), ()) is None
    assert "too many open files" in caplog.text
    assert [each.type for each in observed(view).report.devices] == ["rdma"]


@pytest.mark.parametrize("wrong", ["79=explode", "x=reset"])
def test_a_wrong_action_is_named(wrong: str) -> None:
    with pytest.raises(SettingsError, match="gpu-actions: GPU action"):
        device_view(AgentSettings(gpu_actions=wrong), lambda: None, DeviceCheckpointView(""))


def test_devices_can_be_switched_off() -> None:
    off = AgentSettings(devices=False)
    assert device_view(off, lambda: None, DeviceCheckpointView("")) is None


def test_an_allocation_of_an_unknown_type_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent does not handle such devices; their device plugin does."""
    caplog.set_level(logging.INFO, "agent.node.devices")
    view = view_of(tmp_path)
    allocation = '{"xpu": [{"minor": 7, "resources": {"example.com/xpu": "1"}}], "rdma": []}'
    user = msgspec.structs.replace(pod("user"), annotations={DEVICE_ALLOCATED: allocation})
    for pods, texts in (((user,), 1), ((user, pod("other")), 1), ((), 1), ((user,), 2)):
        assert observed(view, pods=pods).report.devices == ()
        assert caplog.text.count(f"pod {user.title}: the files of its") == texts
    assert "of type 'xpu' are not known here" in caplog.text
    view.close()
