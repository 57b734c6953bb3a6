from __future__ import annotations

import select
from pathlib import Path

import pytest

from agent.discover.pci import DEVICES
from agent.host.kernel_events import Uevents
from agent.node.triggers import SUBSYSTEMS


def test_a_uevent_of_a_pci_function_is_received() -> None:
    """The test requests a uevent of the first PCI function of this machine, without a change."""
    function = next(iter(sorted(Path("/", DEVICES).glob("*"))), None)
    if function is None:
        pytest.skip("no PCI on this machine")
    try:
        uevents = Uevents()
    except OSError as error:
        pytest.skip(f"no uevents: {error.strerror}")
    try:
        try:
            (function / "uevent").write_text("change")
        except OSError as error:
            pytest.skip(f"{function}/uevent: {error.strerror}")
        if not select.select([uevents.fileno()], [], [], 5)[0]:
            pytest.skip("uevents do not reach this network namespace")
        assert uevents.read(SUBSYSTEMS)
    finally:
        uevents.close()
