"""The kubelet's memory_manager_state file: the memory of NUMA nodes that its static policy assigned
(kubelet: pkg/kubelet/cm/memorymanager/state/checkpoint.go).

Version 1 has the memory of containers; version 2 also that of whole pods. Version 3 has all of this
a second time, as a JSON text in `data`, which is what its kubelet reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from agent.kubelet import statefile
from agent.kubelet.statefile import Checked

FILE_NAME: Final = "memory_manager_state"

_CONTENT: Final = frozenset({"policyName", "machineState", "entries", "podEntries"})

_TABLE_FIELDS: Final = {
    "total_bytes": "total",
    "system_reserved_bytes": "systemReserved",
    "allocatable_bytes": "allocatable",
    "reserved_bytes": "reserved",
    "free_bytes": "free",
}
_NODE_FIELDS: Final = {
    "assignments": "numberOfAssignments",
    "memory": "memoryMap",
    "group": "cells",
}
_BLOCK_FIELDS: Final = {"nodes": "numaAffinity", "kind": "type", "size_bytes": "size"}


class MemoryTable(msgspec.Struct, frozen=True, rename=_TABLE_FIELDS):
    """One kind of memory of a NUMA node."""

    total_bytes: int
    system_reserved_bytes: int
    allocatable_bytes: int
    reserved_bytes: int
    """What is assigned to containers."""
    free_bytes: int


class NodeMemory(msgspec.Struct, frozen=True, rename=_NODE_FIELDS):
    assignments: int
    memory: dict[str, MemoryTable]
    """By kind (`memory`, `hugepages-1Gi`)."""
    group: tuple[int, ...]
    """The NUMA nodes that containers hold together with this one, itself among them."""


class Block(msgspec.Struct, frozen=True, rename=_BLOCK_FIELDS):
    """Memory of one kind, from these NUMA nodes together."""

    nodes: tuple[int, ...]
    kind: str
    size_bytes: int


Blocks = tuple[Block, ...]


class _PodEntry(msgspec.Struct, frozen=True, rename="camel"):
    memory_blocks: Blocks = ()


class MemoryManagerState(msgspec.Struct, frozen=True):
    """The state of the kubelet's memory manager, without entries that can't be read."""

    policy: str = "None"
    machine: dict[int, NodeMemory] = {}
    """By NUMA node."""
    entries: dict[str, dict[str, Blocks]] = {}
    """By pod uid and container name."""
    pods: dict[str, Blocks] = {}
    """By pod uid."""
    version: int | None = None
    """None for an unknown version, whose known fields are read."""
    checked: Checked = Checked.UNKNOWN
    problems: tuple[str, ...] = ()

    @property
    def checksum_field(self) -> str:
        return "dataChecksum" if self.version == 3 else "checksum"


def read(path: str) -> MemoryManagerState:
    """The default value for an absent file: the kubelet has no policy, or does not exist. Raises
    StateFileError, also for a wrong checksum."""
    return statefile.read(path, decode, MemoryManagerState())


def decode(raw: bytes) -> MemoryManagerState:
    """Raises StateFileError for a torn text or an unknown format; `checked` reports a wrong
    checksum."""
    content, checked, problems = statefile.manager_state(raw, _CONTENT, _CONTENT)
    state = MemoryManagerState(
        policy=statefile.field(content, "policyName", str, ""),
        machine=_machine(content, problems),
        entries=_entries(content, problems),
        pods={
            uid: entry.memory_blocks
            for uid, entry in _read(content, "podEntries", _PodEntry, problems).items()
        },
        version=3,
        checked=checked or Checked.UNKNOWN,
        problems=tuple(problems),
    )
    if checked is not None:
        return state
    recorded = statefile.number(content, "checksum")
    version, checked = statefile.matching_version(recorded, () if problems else _forms(state))
    return msgspec.structs.replace(state, version=version, checked=checked)


def _forms(state: MemoryManagerState) -> Iterator[tuple[int, int]]:
    """The versions that this state may have, with their checksums, likeliest first: without entries
    of pods two are equal, and each was written with two type names."""
    head = (
        ("PolicyName", "string", state.policy),
        ("MachineState", "state.NUMANodeMap", statefile.go_map(state.machine, _node)),
        (
            "Entries",
            "state.ContainerMemoryAssignments",
            statefile.go_map(state.entries, lambda blocks: statefile.go_map(blocks, _blocks)),
        ),
    )
    tail = ("Checksum", "checksum.Checksum", "0")
    if not state.pods:
        text = statefile.go_struct(*head, tail)
        yield 1, statefile.checksum_of("*state.MemoryManagerCheckpoint", text)
        yield 1, statefile.checksum_of("*state.MemoryManagerCheckpointV1", text)
    of_pods = ("PodEntries", "state.PodMemoryAssignments", statefile.go_map(state.pods, _pod))
    text = statefile.go_struct(*head, of_pods, tail)
    yield 2, statefile.checksum_of("*state.MemoryManagerCheckpoint", text)
    yield 2, statefile.checksum_of("*state.MemoryManagerCheckpointV2", text)


def _node(node: NodeMemory) -> str:
    return statefile.go_pointer(
        statefile.go_struct(
            ("NumberOfAssignments", "int", str(node.assignments)),
            (
                "MemoryMap",
                "map[v1.ResourceName]*state.MemoryTable",
                statefile.go_map(node.memory, _table),
            ),
            ("Cells", "[]int", statefile.go_slice(node.group)),
        )
    )


def _table(table: MemoryTable) -> str:
    return statefile.go_pointer(
        statefile.go_struct(
            ("TotalMemSize", "uint64", str(table.total_bytes)),
            ("SystemReserved", "uint64", str(table.system_reserved_bytes)),
            ("Allocatable", "uint64", str(table.allocatable_bytes)),
            ("Reserved", "uint64", str(table.reserved_bytes)),
            ("Free", "uint64", str(table.free_bytes)),
        )
    )


def _blocks(blocks: Blocks) -> str:
    return statefile.go_slice(blocks, _block)


def _block(block: Block) -> str:
    return statefile.go_struct(
        ("NUMAAffinity", "[]int", statefile.go_slice(block.nodes)),
        ("Type", "v1.ResourceName", block.kind),
        ("Size", "uint64", str(block.size_bytes)),
    )


def _pod(blocks: Blocks) -> str:
    return statefile.go_struct(("MemoryBlocks", "[]state.Block", _blocks(blocks)))


def _machine(content: dict[str, Any], problems: list[str]) -> dict[int, NodeMemory]:
    machine = {}
    for node, memory in _read(content, "machineState", NodeMemory, problems).items():
        try:
            machine[int(node)] = memory
        except ValueError:
            problems.append(f"machineState.{node:.80}: is not a NUMA node")
    return machine


def _entries(content: dict[str, Any], problems: list[str]) -> dict[str, dict[str, Blocks]]:
    entries = {}
    for uid, containers in sorted(statefile.field(content, "entries", dict, {}).items()):
        if isinstance(containers, dict):
            entries[uid] = _converted(containers, f"entries.{uid}", Blocks, problems)
        else:
            problems.append(f"entries.{uid}: {containers!r:.80} is not an object")
    return entries


def _read(
    content: dict[str, Any], place: str, kind: type[Value], problems: list[str]
) -> dict[str, Value]:
    return _converted(statefile.field(content, place, dict, {}), place, kind, problems)


Value = TypeVar("Value")


def _converted(
    values: dict[str, Any], place: str, kind: type[Value], problems: list[str]
) -> dict[str, Value]:
    converted = {}
    for name, value in sorted(values.items()):
        try:
            converted[name] = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            problems.append(f"{place}.{name}: {error}")
    return converted
