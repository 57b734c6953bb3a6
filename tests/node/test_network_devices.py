"""Network devices in the namespaces of pods: on a generated sysfs, and in a real namespace."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest

from agent.discover import pci
from agent.host.processes import Process, ProcessGoneError, UnreadableError
from agent.model.devices.pci import Function
from agent.model.pod.pods import Container, ContainerState, Pod
from agent.node.network_devices import NetworkDevices, of_containers
from tests.builders import machine, pod
from tests.discover.buses import add_function, write_files
from tests.host.namespaces import BUS, needs_namespaces, process_in_namespace

ONE, TWO = "0000:18:00.1", "0000:18:00.2"


class Node:
    """A node with two virtual functions, whose interfaces are on the host at first."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pods: tuple[Pod, ...] = ()
        self.inside: dict[str, set[str] | Exception] = {}
        """By sandbox id, the addresses in its namespace."""
        self.reads: Counter[str] = Counter()
        for address in (ONE, TWO):
            path = f"pci0000:17/0000:17:00.0/{address}"
            files = {"driver@": "../iavf", "numa_node": "1\n", "net/eth/mtu": ""}
            add_function(root, path, files)
        self.functions = pci.read(str(root), machine(2, 2)).by_address
        self.devices = NetworkDevices(str(root), lambda pod: (pod.sandboxes[0].id, 7), self._read)

    def move(self, address: str, sandbox: str) -> None:
        """From the host's namespace to that of the sandbox; "" for the opposite direction."""
        for inside in self.inside.values():
            if isinstance(inside, set):
                inside.discard(address)
        folder = self.root / "sys/bus/pci/devices" / address
        if sandbox:
            shutil.rmtree(folder / "net", ignore_errors=True)
            inside = self.inside.setdefault(sandbox, set())
            assert isinstance(inside, set)
            inside.add(address)
        else:
            write_files(folder, {"net/eth/mtu": ""})

    def start(self, *names: str) -> None:
        for name in names:
            self.pods = (*self.pods, with_sandbox(name, len(self.pods)))

    def stop(self, name: str) -> None:
        self.pods = tuple(each for each in self.pods if each.uid != name)

    def observe(self) -> dict[str, tuple[str, ...]]:
        return self.devices.observe(self.functions, self.pods)

    def listed_again(self) -> None:
        self.functions = dict(self.functions)

    def _read(self, object_id: str, pid: int) -> Collection[str]:
        self.reads[object_id] += 1
        inside = self.inside.get(object_id, set())
        if isinstance(inside, Exception):
            raise inside
        return inside


def with_sandbox(name: str, created_at: int = 0) -> Pod:
    sandbox = Container(f"s-{name}", "", ContainerState.RUNNING)
    main = Container(f"c-{name}", "main", ContainerState.RUNNING)
    return msgspec.structs.replace(
        pod(name), sandboxes=(sandbox,), containers=(main,), created_at=created_at
    )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_no_namespace_is_read_while_all_interfaces_are_on_the_host(node: Node) -> None:
    node.start("a", "b")
    assert node.observe() == {}
    assert not node.reads


def test_a_new_pod_has_the_interface_that_is_missing_on_the_host(node: Node) -> None:
    node.start("a", "b")
    node.observe()
    node.move(ONE, "s-new")
    node.start("new")
    for _ in range(3):
        assert node.observe() == {"new": (ONE,)}
    assert node.reads == {"s-new": 1}, "newer namespaces are read first, and each once"
    assert of_containers({"new": (ONE,)}, node.pods) == {("new", "main"): (ONE,)}
    named = [msgspec.structs.replace(each, named=("x", "y")) for each in node.pods]
    assert of_containers({"new": (ONE,)}, named).keys() == {("new", "x"), ("new", "y")}


def test_an_interface_that_was_moved_into_an_old_pod_is_found_at_the_next_listing(
    node: Node,
) -> None:
    node.start("a", "b")
    node.observe()
    node.move(TWO, "s-a")
    assert node.observe() == {}
    node.listed_again()
    assert node.observe() == {"a": (TWO,)}


def test_the_interfaces_of_a_pod_that_ends_go_to_the_host_or_to_another_pod(node: Node) -> None:
    node.move(ONE, "s-a")
    node.move(TWO, "s-a")
    node.start("a")
    assert node.observe() == {"a": (ONE, TWO)}
    node.stop("a")
    node.move(ONE, "")
    node.move(TWO, "s-b")
    node.start("b")
    assert node.observe() == {"b": (TWO,)}
    node.listed_again()
    node.move(ONE, "s-b")
    assert node.observe() == {"b": (ONE, TWO)}


def test_a_function_without_interface_anywhere_is_searched_once_in_each_namespace(
    node: Node,
) -> None:
    node.move(ONE, "nowhere")
    node.start("a", "b")
    for _ in range(2):
        assert node.observe() == {}
    node.start("c")
    assert node.observe() == {}
    assert node.reads == {"s-a": 1, "s-b": 1, "s-c": 1}


@pytest.mark.parametrize("driver", ["vfio-pci", ""])
def test_functions_that_programs_use_have_no_interface(node: Node, driver: str) -> None:
    function = msgspec.structs.replace(node.functions[ONE], driver=driver)
    node.functions = {ONE: function}
    node.move(ONE, "s-a")
    node.start("a")
    assert node.observe() == {}
    assert not node.reads


def test_the_interface_of_a_virtio_device_is_on_the_host(node: Node) -> None:
    node.move(ONE, "s-a")
    write_files(node.root / "sys/bus/pci/devices" / ONE, {"virtio2/net/eth0/mtu": ""})
    node.start("a")
    assert node.observe() == {}
    assert not node.reads


def test_namespaces_that_cannot_be_read_are_logged_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    node.move(ONE, "s-c")
    node.inside |= {f"s-{name}": UnreadableError("process 7: ns/net: denied") for name in "ab"}
    node.inside["s-gone"] = ProcessGoneError("process 7 has ended")
    node.start("c", "a", "b", "gone")
    for _ in range(2):
        assert node.observe() == {"c": (ONE,)}
    assert len(caplog.messages) == 1
    assert "ns/b: its network namespace can't be read" in caplog.text
    assert "CAP_SYS_ADMIN" in caplog.text


@needs_namespaces
@pytest.mark.parametrize("right", [True, False])
def test_a_real_namespace_is_read_if_the_process_is_of_the_sandbox(
    tmp_path: Path, right: bool
) -> None:
    (tmp_path / "proc").symlink_to("/proc")
    functions = {BUS: Function(BUS, class_code=0x020000, driver="iavf", node=1)}
    with process_in_namespace() as pid:
        with Process("/proc", pid) as process:
            group = next(iter(process.groups().values()))
        of_process = group if right else "another"
        devices = NetworkDevices(str(tmp_path), lambda _: (of_process, pid))
        expected = {"a": (BUS,)} if right else {}
        assert devices.observe(functions, [with_sandbox("a")]) == expected
