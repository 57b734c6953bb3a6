from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.kubelet.device_checkpoint import FILE_NAME
from agent.model.devices.holding import HoldingSource, ReportedDevices
from agent.node.kubelet_view import DeviceCheckpointView
from tests.kubelet.state_files import ENTRY, REAL

REPORTED = ReportedDevices(
    ENTRY["PodUID"], "check", "nvidia.com/gpu", ("tegra",), HoldingSource.CHECKPOINT
)


def put(folder: Path, text: str) -> None:
    path = folder / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_without_a_checkpoint_there_are_no_reported_devices(tmp_path: Path) -> None:
    view = DeviceCheckpointView(str(tmp_path))
    assert (view.reported_devices(), view.nodes()) == ((), {})


def test_devices_are_read_once_the_checkpoint_is_written(tmp_path: Path) -> None:
    view = DeviceCheckpointView(str(tmp_path))
    assert view.reported_devices() == ()
    put(tmp_path, json.dumps(REAL))
    assert view.reported_devices()[0] == REPORTED
    assert view.reported_devices() is view.reported_devices()


def test_numa_nodes_of_devices(tmp_path: Path) -> None:
    put(tmp_path, "{")
    view = DeviceCheckpointView(str(tmp_path))
    assert view.nodes() is None, "not known"
    ids = {"0": ["a"], "1": ["a", "b"], "-1": ["c"], "-7": ["d"], "1024": ["e"]}
    fields = {"ResourceName": "nic", "DeviceIDs": ids}
    entries = [ENTRY | fields, ENTRY | fields | {"DeviceIDs": {"1": ["d"]}}]
    put(tmp_path, json.dumps({"Data": {"PodDeviceEntries": entries}}))
    assert view.nodes() == {(ENTRY["PodUID"], "check"): {0: 1, 1: 3}}
    put(tmp_path, "{")
    assert view.nodes() == {(ENTRY["PodUID"], "check"): {0: 1, 1: 3}}, "its last content"


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({**REAL, "Checksum": 1})])
def test_a_torn_file_is_logged_once_and_leaves_the_last_valid_answer(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, json.dumps(REAL))
    view = DeviceCheckpointView(str(tmp_path))
    before = view.reported_devices()
    caplog.clear()
    put(tmp_path, content)
    for _ in range(3):
        assert view.reported_devices() == before
    assert len(caplog.records) == 1
    assert FILE_NAME in caplog.text
    put(tmp_path, json.dumps(REAL))
    assert view.reported_devices() == before
