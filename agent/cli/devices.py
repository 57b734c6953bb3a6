"""List the devices of the machine: GPUs, network interfaces, FPGAs and other accelerators, with the
pods that have them.

NVML reports memory, use and links of GPUs. Their health is what the agent reports, if one runs.
Names come from udev's hardware database, if pyudev is installed and udev runs; otherwise the
command prints the PCI ids. Of a copy of another machine (--root) only the PCI functions are read.
With NODE the command runs in the agent's pod on that node, by kubectl and with the caller's rights.
Exit code 0: done; 1: the machine can't be read; 2: wrong usage."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping

import msgspec

from agent.cli import options, remote
from agent.discover import cpus, sysfs_devices
from agent.discover.gpuwatcher import GpuSession, SessionError
from agent.discover.sysfs import DiscoveryError
from agent.discover.sysfs_devices import SysfsDevices
from agent.hooks import agent_client
from agent.host.files import reason
from agent.model import snapshot as snapshots
from agent.model.cpu.topology import Topology
from agent.model.devices.gpus import GpuReport
from agent.model.devices.pci import Function
from agent.model.settings.agent import DevicesSettings
from agent.model.settings.options import SettingsError
from agent.model.snapshot import Snapshot, SnapshotError
from agent.node import own_processes
from agent.node.device_listing import nvidia_cards
from agent.view import devices, format
from agent.view.devices import DeviceSources

USAGE = "topolet devices [OPTIONS] [NODE]"
SETTINGS = DevicesSettings
SCHEMA_VERSION = 1
"""The version of the JSON output."""
_DRIVER_SECONDS = 15.0
_NAMES = ("ID_VENDOR_FROM_DATABASE", "ID_MODEL_FROM_DATABASE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_root(parser)
    parser.add_argument("-o", "--output", choices=("table", "tree", "json"), default="table")
    remote.add_arguments(parser)
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    if arguments.node:
        return remote.run_on_node("devices", arguments, SETTINGS, f"--output={arguments.output}")
    root: str = arguments.root
    if not os.path.isdir(root):
        return options.fail(FileNotFoundError(f"--root {root}: no such folder"), 2)
    try:
        settings = options.load(arguments, SETTINGS)
        sources = read(root, cpus.read(root), settings)
    except SettingsError as error:
        return options.fail(error, 2)
    except DiscoveryError as error:
        return options.fail(error)
    for problem in sources.problems:
        print(f"topolet: {format.printable(problem)}", file=sys.stderr)
    found = devices.shown(sources, names(root))
    try:
        if arguments.output == "json":
            body = {"schema_version": SCHEMA_VERSION, "devices": found}
            text = msgspec.json.format(msgspec.json.encode(body)).decode()
            print(format.printable_json(text), flush=True)
        else:
            width = format.columns(200)
            draw = devices.as_tree if arguments.output == "tree" else devices.as_table
            text = "\n".join(draw(found, width)) + "\n"
            print(format.encodable(text), end="", flush=True)
    except OSError as error:
        return format.unwritten("devices", error)
    return 0


def read(
    root: str,
    topology: Topology,
    settings: DevicesSettings,
    driver: Callable[[str], GpuReport] | None = None,
) -> DeviceSources:
    """The devices of the machine below `root`. Of this machine, or with a configured driver root,
    also the driver's report, and the holders and health that the agent published. `driver` returns
    the report of the driver below a root; None: a process that is started for one report does.
    Raises DiscoveryError."""
    of_sysfs = SysfsDevices(root)
    of_sysfs.update(topology)
    functions = of_sysfs.functions
    found = DeviceSources(
        functions,
        sysfs_devices.interfaces(root, functions),
        of_sysfs.rdma,
        of_sysfs.fpgas,
        problems=of_sysfs.problems,
    )
    if not _is_live(root) and not settings.gpu_driver_root:
        return found
    has_cards = nvidia_cards(functions)
    snapshot = None
    with contextlib.suppress(SnapshotError):
        snapshot = read_snapshot(settings.state_dir)
    return msgspec.structs.replace(
        found,
        gpus=(driver or _driver_report)(settings.gpu_driver_root) if has_cards else None,
        holders=devices.holders(snapshot) if snapshot else {},
        health=_health(root, settings.state_dir),
        numa_nodes=devices.numa_nodes(snapshot) if snapshot else {},
    )


def names(root: str) -> Callable[[Function], str]:
    """Returns the function that gives a PCI function's vendor and model in udev's hardware
    database, "" without one."""
    if not _is_live(root):
        return lambda function: ""
    try:
        import pyudev

        context = pyudev.Context()
    except (ImportError, OSError):
        return lambda function: ""

    def name_of(function: Function) -> str:
        with contextlib.suppress(pyudev.DeviceNotFoundError):  # It was removed since.
            device = pyudev.Devices.from_name(context, "pci", function.address)
            return " ".join(filter(None, (device.properties.get(name) for name in _NAMES)))
        return ""

    return name_of


def _is_live(root: str) -> bool:
    """Whether `root` is the root of this machine, or the folder where a container has it mounted
    (TOPOLET_ROOT)."""
    mounted = os.environ.get("TOPOLET_ROOT", "/")
    return os.path.realpath(root) in ("/", os.path.realpath(mounted))


def _driver_report(driver_root: str) -> GpuReport:
    try:
        with contextlib.closing(GpuSession(driver_root)) as session:
            return session.report(_DRIVER_SECONDS)
    except SessionError as error:
        return GpuReport(error.fault, error.message)


def read_snapshot(state_dir: str) -> Snapshot:
    """The decisions that the agent published last. Raises SnapshotError, also if there are none."""
    path = os.path.join(state_dir, snapshots.FILE)
    try:
        return agent_client.read_snapshot(path)
    except OSError as error:
        raise SnapshotError(reason(error)) from error


def _health(root: str, state_dir: str) -> Mapping[str, bool]:
    """Whether each device works, from the metrics of the agent that runs; empty without one."""
    page = own_processes.page_of("agent", os.path.join(root, "proc"), state_dir)
    return {
        series.labels.get("id", ""): series.value == 1
        for series in (page.series if page else ())
        if series.name == "topolet_device_healthy"
    }
