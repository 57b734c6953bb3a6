from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.kubelet.cpu_manager_state import CpuManagerState, CpuManagerStateError, read
from agent.model.cpuset import CpuSet, union
from tests.conftest import SHARED

VECTORS = SHARED / "vectors" / "kubelet-state-files.jsonl"


def real_files() -> list[str]:
    if not VECTORS.exists():
        pytest.skip(f"no {VECTORS}")
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    return [row["content"] for row in rows if row["file"] == "cpu_manager_state"]


def test_real_files(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files = real_files()
    assert files
    for text in files:
        path.write_text(text)
        state, raw = read(str(path)), json.loads(text)
        assert state.static == (raw["policyName"] == "static")
        assert state.by_uid.keys() == raw.get("entries", {}).keys()
        assert not union(state.by_uid.values()) & CpuSet.parse(raw["defaultCpuSet"])


def test_real_files_torn_anywhere_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for text in real_files():
        for cut in range(0, len(text), 7):
            path.write_text(text[:cut])
            with pytest.raises(CpuManagerStateError, match=str(path)):
                read(str(path))


def test_cpus_of_a_pod_are_those_of_all_its_containers(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text('{"policyName":"static","entries":{"u":{"a":"1-2","b":"9"}},"later":1}')
    assert read(str(path)) == CpuManagerState("static", {"u": CpuSet([1, 2, 9])})


def test_absent_file_is_no_policy(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")) == CpuManagerState("none", {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\xff", "is not JSON"),
        (b'{"x":' + b"[" * 100_000, "is not JSON"),
        (b'{"entries":{}}', "policyName"),
        (b'{"policyName":"static","entries":{"id":"1-3"}}', "entries"),
        (b'{"policyName":"static","entries":{"u":{"a":"1-"}}}', "entries.u: CPU list '1-'"),
    ],
)
def test_fault_is_named(tmp_path: Path, text: bytes, reason: str) -> None:
    path = tmp_path / "state"
    path.write_bytes(text)
    with pytest.raises(CpuManagerStateError, match=reason):
        read(str(path))


def test_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(CpuManagerStateError, match="Is a directory"):
        read(str(tmp_path))
