"""A node with GPUs: the CPUs and processes of this machine, with PCI functions and a fake driver of
the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.kube.store import EmbeddedStore
from agent.model.devices.gpus import pci_address
from tests.discover import buses, fakenvml
from tests.discover.fakenvml import FakeDriver, Machine
from tests.fixtures.pods import (
    PodSpec,
    create_container,
    create_request,
    run_sandbox,
    start_container,
)
from tests.integration.harness import TestNode
from tests.waiting import eventually

_NVIDIA = {"class": "0x030200\n", "vendor": "0x10de\n", "numa_node": "0\n"}


class GpuHost:
    """`root`: a root folder with /sys and /proc; all but the GPUs are links to this machine's."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        if why := fakenvml.missing():
            pytest.skip(why)
        self.root = folder / "root"
        self.machine = machine
        self.driver = FakeDriver(folder, machine)
        for path in ("/proc", "/sys/devices/system"):
            self.link(Path(path))
        for card in machine.cards:
            address = pci_address(card.bus)
            buses.add_function(self.root, f"pci{address.rpartition(':')[0]}/{address}", _NVIDIA)

    def link(self, path: Path) -> None:
        """Adds a link to a folder of this machine to the root folder."""
        target = self.root / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables of the fake driver."""
        return {"FAKE_NVML": str(self.driver.facts)}


class GpuNode(GpuHost):
    """A node whose agent uses such a root folder."""

    def __init__(self, node: TestNode, machine: Machine) -> None:
        super().__init__(node.folder, machine)
        self.node = node

    @property
    def path_flags(self) -> tuple[str, ...]:
        """The agent's flags for root folder and driver."""
        return f"--root={self.root}", f"--gpu-driver-root={self.driver.root}"

    def start_agent(self, *flags: str) -> None:
        """Starts the agent without a cluster, with the flags and variables of the GPUs."""
        self.node.start_agent(*self.path_flags, *flags, variables=self.environ)

    def device(self) -> dict[str, Any]:
        """The Device object once it lists all cards."""
        store = EmbeddedStore(str(self.node.state / "objects"))
        found: dict[str, Any] = {}

        def published() -> bool:
            nonlocal found
            found = store.get("Device", "node-a") or {}
            return bool(found.get("spec", {}).get("devices"))

        eventually("a Device object", published)
        return found

    def run(self, spec: PodSpec, *visible: str) -> str:
        """Runs a container of the pod with these visible devices, as a device plugin sets them."""
        request = create_request(spec, run_sandbox(self.node.direct, spec))
        if visible:
            request.config.envs.add(key="NVIDIA_VISIBLE_DEVICES", value=",".join(visible).encode())
        container = create_container(self.node.direct, request)
        start_container(self.node.direct, container)
        return container
