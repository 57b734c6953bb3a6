from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.kubelet.device_checkpoint import (
    NO_NODE,
    DeviceCheckpoint,
    DeviceEntry,
    decode,
    read,
)
from agent.kubelet.statefile import Checked, StateFileError
from tests.conftest import DATA
from tests.kubelet.state_files import ENTRY, REAL

VECTORS = DATA / "vectors" / "kubelet-state-files.jsonl"


def checkpoint(*entries: dict[str, Any], **outer: Any) -> bytes:
    return json.dumps({"Data": {"PodDeviceEntries": list(entries)}} | outer).encode()


def entry_with_list(pod: str, ids: list[str] | None, answer: str | None) -> dict[str, Any]:
    return {
        "PodUID": pod,
        "ContainerName": "c",
        "ResourceName": "r",
        "DeviceIDs": ids,
        "AllocResp": answer,
    }


def test_real_file() -> None:
    assert decode(json.dumps(REAL).encode()) == DeviceCheckpoint(
        entries=(
            DeviceEntry(
                uid=ENTRY["PodUID"],
                container="check",
                resource="nvidia.com/gpu",
                devices={NO_NODE: ("tegra",)},
                answer=b"\n\x1f\n\x16NVIDIA_VISIBLE_DEVICES\x12\x05tegra",
            ),
        ),
        registered={"nvidia.com/gpu": ("tegra",)},
        version=2,
        checked=Checked.VERIFIED,
    )


def test_real_files_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    files = [row["content"] for row in rows if row["file"] == "kubelet_internal_checkpoint"]
    assert len(files) == 2
    for text in files:
        path.write_text(text)
        assert read(str(path)).checked is Checked.VERIFIED
        path.write_text(text.replace("nvidia.com", "nvidia.net"))
        with pytest.raises(StateFileError, match=f"{path}: Checksum does not match"):
            read(str(path))


def test_boot_id_is_not_covered_by_the_checksum() -> None:
    state = decode(json.dumps(REAL | {"BootID": "b"}).encode())
    assert (state.boot_id, state.checked) == ("b", Checked.VERIFIED)


@pytest.mark.parametrize(
    ("data", "checksum", "version"),
    [
        (
            {
                "PodDeviceEntries": [
                    entry_with_list("u", ["d1", "d0"], "Af8="),
                    entry_with_list("v", None, None),
                ],
                "RegisteredDevices": {"r": ["d1", "d0"], "q": None},
            },
            1856384098,
            1,
        ),
        ({"PodDeviceEntries": None, "RegisteredDevices": {}}, 3467439661, 2),
    ],
    ids=["plain lists", "no devices"],
)
def test_checksums_equal_gos(data: dict[str, Any], checksum: int, version: int) -> None:
    """Printed by spew 1.1.1 for structs of the same names."""
    state = decode(json.dumps({"Data": data, "Checksum": checksum}).encode())
    assert (state.version, state.checked) == (version, Checked.VERIFIED)


def test_plain_list_of_devices_has_no_numa_node() -> None:
    (entry,) = decode(checkpoint(entry_with_list("u", ["d1", "d0"], None))).entries
    assert (entry.devices, entry.answer) == ({NO_NODE: ("d1", "d0")}, None)


def test_invalid_entries_are_named_and_the_rest_is_used() -> None:
    broken = [
        ENTRY | {"AllocResp": "?"},
        ENTRY | {"DeviceIDs": {"x": ["d"]}},
        ENTRY | {"DeviceIDs": 1},
        {},
    ]
    state = decode(checkpoint(*broken, ENTRY, Checksum=5, Later=1))
    assert len(state.entries) == 1
    pod = f"Data.PodDeviceEntries: pod {ENTRY['PodUID']}, check: "
    starts = [
        "Later: ",
        pod + "AllocResp: ",
        pod + "DeviceIDs.x: ",
        pod,
        "Data.PodDeviceEntries[3]",
    ]
    assert len(state.problems) == len(starts)
    for problem, start in zip(state.problems, starts, strict=True):
        assert problem.startswith(start)
    assert (state.version, state.checked) == (None, Checked.UNKNOWN)


def test_mixed_formats_are_an_unknown_version() -> None:
    state = decode(checkpoint(ENTRY, entry_with_list("u", ["d"], None), Checksum=5))
    assert (len(state.entries), state.version) == (2, None)
    assert state.checked is Checked.UNKNOWN


def test_absent_file_means_no_devices(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")) == DeviceCheckpoint()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{}", "Data is missing"),
        (b'{"Data":[]}', "Data: is a list"),
        (b'{"Data":{"PodDeviceEntries":{}}}', "PodDeviceEntries: is a dict"),
        (checkpoint(ENTRY, Checksum="x"), "Checksum: is a str"),
        (checkpoint(ENTRY, BootID=1), "BootID: is a int"),
    ],
)
def test_errors_name_the_file(tmp_path: Path, raw: bytes, reason: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(raw)
    with pytest.raises(StateFileError, match=f"{path}: {reason}"):
        read(str(path))
