from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.kubelet.device_checkpoint import FILE_NAME
from agent.model.devices.holding import DeviceGrant, HoldingSource
from agent.node.kubelet_view import DeviceCheckpointView
from tests.kubelet.test_device_checkpoint import ENTRY, REAL

GIVEN = DeviceGrant(
    ENTRY["PodUID"], "check", "nvidia.com/gpu", ("tegra",), HoldingSource.CHECKPOINT
)


def put(folder: Path, text: str) -> None:
    path = folder / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_a_kubelet_that_no_plugin_met_gave_nothing(tmp_path: Path) -> None:
    assert DeviceCheckpointView(str(tmp_path)).grants() == ()


def test_what_plugins_gave_is_read_when_it_was_written(tmp_path: Path) -> None:
    view = DeviceCheckpointView(str(tmp_path))
    assert view.grants() == ()
    put(tmp_path, json.dumps(REAL))
    assert view.grants()[0] == GIVEN
    assert view.grants() is view.grants()


@pytest.mark.parametrize("torn", ["{", "[]", json.dumps({**REAL, "Checksum": 1})])
def test_a_torn_file_is_told_once_and_leaves_the_last_good_answer(
    tmp_path: Path, torn: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, json.dumps(REAL))
    view = DeviceCheckpointView(str(tmp_path))
    before = view.grants()
    caplog.clear()
    put(tmp_path, torn)
    for _ in range(3):
        assert view.grants() == before
    assert len(caplog.records) == 1
    assert FILE_NAME in caplog.text
    put(tmp_path, json.dumps(REAL))
    assert view.grants() == before
