from __future__ import annotations

import pytest

from agent.allocate.devices.inventory import inventory, node_devices
from agent.model.devices.device_allocation import sum_functions, virtual_functions
from agent.model.devices.device_object import Device
from agent.model.pod.annotations import DEVICE_ALLOCATED
from tests.allocate.devices.builders import BYTES, MEMORY, RATIO, gpu, nic, node, part


def test_free_amounts_are_those_that_no_pod_holds() -> None:
    stock = node([gpu(0), gpu(1), gpu(2)], {0: 30, 2: 100}).stocks["gpu"]
    assert stock.free == {0: part(70), 1: part(100), 2: part(0)}
    assert (stock.used, stock.idle) == (0b101, 0b010)
    assert (stock.sums[RATIO], stock.sums[MEMORY]) == (170, BYTES * 170 // 100)


def test_an_unhealthy_device_has_nothing_free_but_may_be_in_use() -> None:
    stock = node([gpu(0, healthy=False), gpu(1)], {0: 30}).stocks["gpu"]
    assert stock.free == {0: {}, 1: part(100)}
    assert (stock.used, stock.idle) == (0b01, 0b10)


def test_over_allocated_and_removed_devices() -> None:
    stock = node([gpu(0)], {0: 130, 5: 10}).stocks["gpu"]
    assert stock.free == {0: part(0)}
    assert stock.used == 0b100001
    assert "rdma" not in node([gpu(0)], nics={0: 10}).stocks


@pytest.mark.parametrize("minor", [-1, 1024, 10**18])
def test_an_invalid_minor_is_ignored(minor: int) -> None:
    """Any user may write it into the annotation of a pod."""
    stock = node_devices(inventory([gpu(0)]), {("gpu", minor): part(100)}).stocks["gpu"]
    assert (stock.free, stock.used, stock.idle) == ({0: part(100)}, 0, 1)


def test_the_later_of_two_devices_with_one_minor_counts() -> None:
    fleet = inventory([gpu(0, 0, "p0"), gpu(0, 1, "p1"), nic(-1), nic(5000)]).fleets
    assert fleet["gpu"].pcies == {"p1": 1}
    assert "rdma" not in fleet


def test_virtual_functions_that_pods_hold() -> None:
    held = '{"minor": 1, "extension": {"vfs": [{"busID": "a"}, {"busID": "b", "minor": 3}]}}'
    text = f'{{"rdma": [{held}, {{"minor": 2, "extension": null}}], "gpu": null}}'
    assert virtual_functions({DEVICE_ALLOCATED: text}) == {("rdma", 1): frozenset("ab")}
    assert virtual_functions({}) == {}
    more = {("rdma", 1): frozenset("c"), ("rdma", 2): frozenset("a")}
    assert sum_functions([virtual_functions({DEVICE_ALLOCATED: text}), more]) == {
        ("rdma", 1): frozenset("abc"),
        ("rdma", 2): frozenset("a"),
    }


def test_every_resource_of_an_unknown_type_has_a_weight() -> None:
    fleets = inventory([gpu(0), nic(0), Device("xpu", "x", 0, {"b/b": 2, "a/a": 1})]).fleets
    assert fleets["xpu"].weighed == ("a/a", "b/b")
    assert fleets["gpu"].weighed == (RATIO, MEMORY)
    assert fleets["xpu"].sums == {"a/a": 1, "b/b": 2}
