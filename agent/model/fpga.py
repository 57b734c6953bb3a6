"""FPGAs of a machine."""

from __future__ import annotations

import enum

import msgspec

from agent.model.pci import CharDevice, Function


class FpgaDriver(enum.StrEnum):
    """Who describes it: the kernel's Device Feature List, or Intel's driver that was before it."""

    DFL = "dfl"
    OPAE = "opae"


class AcceleratorPort(msgspec.Struct, frozen=True):
    """Where a program reaches the accelerator function; `function_id`: which one is loaded, as 32
    hexadecimal digits, "" where that can't be read."""

    name: str
    function_id: str = ""
    char_device: CharDevice | None = None


class Fpga(msgspec.Struct, frozen=True):
    """One PCI function with its ports. `interface_id`: what a bitstream must have been made for;
    `management`: the file that loads one; neither is there on a virtual function."""

    function: Function
    driver: FpgaDriver
    ports: tuple[AcceleratorPort, ...] = ()
    interface_id: str = ""
    management: CharDevice | None = None

    @property
    def address(self) -> str:
        return self.function.address


class Fpgas(msgspec.Struct, frozen=True):
    """By address."""

    devices: tuple[Fpga, ...] = ()
    problems: tuple[str, ...] = ()
