from __future__ import annotations

import pytest

from agent.model.deviceobject import DeviceTopology
from agent.model.functiondevices import nvidia_cards, places
from agent.model.pci import Function
from tests.model.found import by_address, function, gpu_function


@pytest.mark.parametrize(
    ("bus", "told"),
    [
        (gpu_function("3b:00.0"), True),
        (gpu_function("3b:00.0", ""), True),
        (gpu_function("3b:00.0", "vfio-pci"), False),
        (gpu_function("3b:00.4", physical="0000:3b:00.0"), False),
        (function("3b:00.1", vendor=0x10DE, class_code=0x040300), False),
        (function("3b:00.0", vendor=0x1002, class_code=0x030000), False),
        (function("3b:00.0"), False),
    ],
)
def test_which_functions_nvidias_driver_should_tell_of(bus: Function, told: bool) -> None:
    assert nvidia_cards(by_address(bus)) == ((bus.address,) if told else ())


def test_the_place_of_a_function() -> None:
    adapter, card = function("1a:00.0"), gpu_function("3b:00.0")
    found = places(by_address(adapter, card))
    assert found[card.address] == DeviceTopology(0, 1, "0000:18:00.0", "0000:3b:00.0")
    assert found[adapter.address].pcie == found[card.address].pcie, "below one switch"
