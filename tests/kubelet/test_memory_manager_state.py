from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.kubelet.memory_manager_state import (
    Block,
    MemoryManagerState,
    MemoryTable,
    NodeMemory,
    decode,
    read,
)
from agent.kubelet.statefile import Checked, StateFileError
from tests.kubelet.state_files import BLOCK, FILLED

OF_PODS = FILLED | {"podEntries": {"pod": {"memoryBlocks": [BLOCK]}}}
AS_DATA = {
    "policyName": "other",
    "checksum": 1234,
    "data": json.dumps(FILLED, separators=(",", ":")),
}

KUBELETS_OWN: dict[str, tuple[int, dict[str, Any], str, int]] = {
    "empty": (1, {"policyName": "None", "machineState": {}}, "checksum", 4236770233),
    "containers": (1, FILLED, "checksum", 4215593881),
    "whole pods": (2, OF_PODS, "checksum", 1278640530),
    "data": (3, AS_DATA, "dataChecksum", 1849615440),
}
"""Version, content, and name and value of the checksum: the first is of a real file, the others
from the kubelet's own tests (pkg/kubelet/cm/memorymanager/state)."""


def encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


@pytest.mark.parametrize("name", KUBELETS_OWN)
def test_versions_and_checksums_of_the_kubelet(name: str, tmp_path: Path) -> None:
    version, content, field, value = KUBELETS_OWN[name]
    path = tmp_path / "state"
    path.write_bytes(encoded(content | {field: value}))
    state = read(str(path))
    assert (state.version, state.checked, state.problems) == (version, Checked.VERIFIED, ())
    path.write_bytes(encoded(content | {field: value - 1}))
    with pytest.raises(StateFileError, match=f"{path}: {field} does not match"):
        read(str(path))


def test_values_of_a_memory_manager_state() -> None:
    blocks = (Block((0,), "memory", 512),)
    assert decode(encoded(OF_PODS)) == MemoryManagerState(
        policy="static",
        machine={0: NodeMemory(0, {"memory": MemoryTable(2048, 512, 1536, 512, 1024)}, ())},
        entries={"pod": {"container1": blocks}},
        pods={"pod": blocks},
        version=2,
    )
    assert decode(encoded(AS_DATA)).policy == "static"


def test_invalid_entries_are_named_and_the_rest_is_used() -> None:
    state = decode(
        encoded(
            FILLED
            | {
                "machineState": FILLED["machineState"] | {"a": FILLED["machineState"]["0"], "1": 7},
                "entries": {"u": {"c": [{"type": "memory"}], "d": [BLOCK]}, "v": 1},
                "podEntries": {"u": {"memoryBlocks": 1}},
                "later": 1,
                "checksum": 5,
            }
        )
    )
    assert [problem.split(": ")[0] for problem in state.problems] == [
        "later",
        "machineState.1",
        "machineState.a",
        "entries.u.c",
        "entries.v",
        "podEntries.u",
    ]
    assert (set(state.machine), set(state.entries["u"]), state.pods) == ({0}, {"d"}, {})
    assert (state.version, state.checked) == (None, Checked.UNKNOWN)


def test_absent_file_means_no_policy(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")) == MemoryManagerState()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (encoded(FILLED | {"machineState": []}), "machineState: is a list"),
        (encoded({"data": "{"}), "data: is not JSON"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, raw: bytes, reason: str) -> None:
    path = tmp_path / "state"
    path.write_bytes(raw)
    with pytest.raises(StateFileError, match=f"{path}: {reason}"):
        read(str(path))
