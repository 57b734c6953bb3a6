"""Show the kubelet's state files: which container has which CPUs, memory and devices, and whether
the files are intact.

Exit code 0: all files that exist are intact; 1: a file is incomplete or its checksum is wrong, or a
write was refused; 2: wrong usage. --write-kubelet-state writes the CPUs that a scheduler chose into
the CPU manager's file, in place of the kubelet's own choice. The kubelet has to be stopped; the old
file is kept in the same folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent.cgroup.hierarchy import CgroupError
from agent.cli import options
from agent.discover.sysfs import DiscoveryError
from agent.kubelet import device_checkpoint, state_folder
from agent.kubelet.configuration import ConfigurationError
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.kubelet.device_checkpoint import DeviceCheckpoint
from agent.kubelet.memory_manager_state import Blocks, MemoryManagerState
from agent.kubelet.state_folder import StateFile
from agent.kubelet.statefile import Checked, StateFileError
from agent.model.settings.agent import KubeletStateSettings
from agent.model.settings.options import SettingsError
from agent.node import takeover
from agent.node.takeover import TakenOver, TakeoverError
from agent.rpc.grpc import RpcError
from agent.view import format
from agent.view.format import table

SETTINGS = KubeletStateSettings

SCHEMA_VERSION = 1
"""The version of the JSON output."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument(
        "--write-kubelet-state",
        action="store_true",
        help="write the CPUs that a scheduler chose into the file of a stopped kubelet",
    )
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
    except SettingsError as error:
        return options.fail(error, 2)
    shown: Any
    if arguments.write_kubelet_state:
        try:
            shown = taken = takeover.take_over(settings)
        except (
            StateFileError,
            TakeoverError,
            RpcError,
            CgroupError,
            DiscoveryError,
            ConfigurationError,
            SettingsError,
            OSError,
        ) as error:
            return options.fail(error)
        name, lines, code = "written", written(taken), 0
    elif not os.path.isdir(settings.kubelet_dir):
        why = "is not a folder" if os.path.exists(settings.kubelet_dir) else "does not exist"
        return options.fail(SettingsError(f"kubelet-dir: {settings.kubelet_dir} {why}"))
    else:
        shown = found = state_folder.read(settings.kubelet_dir)
        name, lines = "files", described(found)
        code = 1 if any(each.problem for each in found) else 0
    try:
        if arguments.output == "json":
            # The answers of device plugins (bytes) contain environment variables, which may be
            # secrets.
            document = {"schema_version": SCHEMA_VERSION, name: state_folder.body(shown)}
            json.dump(document, sys.stdout, indent=1, default=lambda raw: f"{len(raw)} bytes")
            print(flush=True)
        else:
            width = format.columns(200)
            text = "\n".join(line[:width] for line in lines)
            print(format.encodable(text), flush=True)
    except OSError as error:
        return format.unwritten("kubelet-state", error)
    return code


def described(found: list[StateFile]) -> Iterator[str]:
    """A heading for each file, then a line for each container that holds something."""
    for each in found:
        if each.state is None:
            yield f"{each.name}: {each.error or 'absent'}"
            continue
        state = each.state
        parts = [f"version {state.version or 'unknown'}"]
        if not isinstance(state, DeviceCheckpoint):
            parts.append(f"policy {state.policy}")
        parts.append("checksum " + _CHECKED[state.checked])
        yield f"{each.name}: {', '.join(parts)}"
        match state:
            case CpuManagerState():
                yield from _cpus(state)
            case MemoryManagerState():
                yield from _memory(state)
            case DeviceCheckpoint():
                yield from _devices(state)
        yield from (f"  problem: {problem}" for problem in state.problems)


def written(taken: TakenOver) -> Iterator[str]:
    """Every change, then the path of the old file."""
    yield from taken.remarks
    if taken.nothing:
        yield f"Nothing to write: {taken.nothing}"
        return
    for uid, containers in sorted(taken.after.entries.items()):
        for name, cpus in sorted(containers.items()):
            old = taken.before.entries.get(uid, {}).get(name)
            if old != cpus:
                yield f"pod {uid}, container {name}: {old or 'shared CPUs'} -> {cpus}"
    yield f"shared CPUs: {taken.before.default} -> {taken.after.default}"
    yield f"The old file is {taken.backup}"


_CHECKED = {
    Checked.VERIFIED: "correct",
    Checked.MISMATCH: "WRONG",
    Checked.UNKNOWN: "unknown",
}


def _cpus(state: CpuManagerState) -> Iterator[str]:
    yield f"  shared CPUs: {state.default or 'none'}"
    rows = [("", identity, str(cpus)) for identity, cpus in state.by_container_id.items()]
    rows += [(uid, "(pod)", str(cpus)) for uid, cpus in state.pods.items()]
    rows += [(uid, name, str(cpus)) for uid, name, cpus in _each(state.entries)]
    yield from _table(("POD", "CONTAINER", "CPUS"), rows)


def _memory(state: MemoryManagerState) -> Iterator[str]:
    machine = [
        (str(node), kind, str(each.total_bytes), str(each.reserved_bytes), str(each.free_bytes))
        for node, memory in sorted(state.machine.items())
        for kind, each in sorted(memory.memory.items())
    ]
    yield from _table(("NODE", "KIND", "TOTAL BYTES", "RESERVED", "FREE"), machine)
    given = [(uid, "(pod)", blocks) for uid, blocks in state.pods.items()]
    given += _each(state.entries)
    yield from _table(("POD", "CONTAINER", "KIND", "NODES", "BYTES"), _blocks(given))


def _blocks(given: list[tuple[str, str, Blocks]]) -> list[tuple[str, ...]]:
    return [
        (uid, name, each.kind, ",".join(map(str, each.nodes)), str(each.size_bytes))
        for uid, name, blocks in given
        for each in blocks
    ]


def _devices(state: DeviceCheckpoint) -> Iterator[str]:
    registered = [(resource, str(len(ids))) for resource, ids in state.registered.items()]
    yield from _table(("RESOURCE", "DEVICES"), registered)
    rows = [
        (each.uid, each.container, each.resource, _node(node), ",".join(ids))
        for each in state.entries
        for node, ids in sorted(each.devices.items())
    ]
    yield from _table(("POD", "CONTAINER", "RESOURCE", "NODE", "DEVICES"), rows)


def _node(node: int) -> str:
    return "-" if node == device_checkpoint.NO_NODE else str(node)


def _each(entries: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, Any]]:
    return [
        (uid, name, value)
        for uid, containers in sorted(entries.items())
        for name, value in sorted(containers.items())
    ]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if rows:
        yield from (f"  {line}" for line in table([head, *rows], 10_000))
