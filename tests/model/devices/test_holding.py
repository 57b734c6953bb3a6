from __future__ import annotations

import msgspec
import pytest

from agent.model.devices.gpus import GpuProcess, GpuReading
from agent.model.devices.holding import (
    DEVICES_CHECKPOINTS,
    GPU_CHECKPOINTS,
    CheckpointEntry,
    GpuUse,
    decode,
    encode,
    gpu_users,
)
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.pods import Container, ContainerState
from tests.builders import pod


def test_no_holdings_are_encoded_as_no_annotation() -> None:
    assert encode(()) == {}
    assert decode({}, DEVICES_CHECKPOINTS) == ()


@pytest.mark.parametrize("key", [DEVICES_CHECKPOINTS, GPU_CHECKPOINTS])
@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", ()),
        ("null", ()),
        ("[]", ()),
        ('[{"podUID":"a"}]', (CheckpointEntry("a"),)),
        (
            '[{"podUID":"a","containerName":"c","resourceName":"r","deviceIDs":["GPU-1"],'
            '"allocResp":"CgQKAkFC","more":1}]',
            (CheckpointEntry("a", "c", "r", ("GPU-1",), b"\n\x04\n\x02AB"),),
        ),
        ('[{"podUID":"a","deviceIDs":null,"allocResp":null}]', (CheckpointEntry("a"),)),
    ],
)
def test_annotations_of_other_writers(
    key: str, text: str, entries: tuple[CheckpointEntry, ...]
) -> None:
    assert decode({key: text}, key) == entries


@pytest.mark.parametrize("key", [DEVICES_CHECKPOINTS, GPU_CHECKPOINTS])
@pytest.mark.parametrize(
    "text",
    [
        *("{", "{}", '["a"]', '[{"deviceIDs":"GPU-1"}]', "[" * 100_000),
        *('[{"allocResp":"?"}]', '[{"allocResp":[10]}]'),
    ],
)
def test_an_error_names_the_annotation(key: str, text: str) -> None:
    with pytest.raises(AnnotationError, match=key):
        decode({key: text}, key)


MAIN = Container("c", "main", ContainerState.RUNNING, "/kubepods/poda/c")
POD = msgspec.structs.replace(pod("a"), containers=(MAIN,))
GROUPS = {1: "/kubepods/poda/c", 2: "/kubepods/poda/c/worker", 3: "/system.slice/x", 4: None}


def used(*processes: GpuProcess) -> tuple[GpuUse, ...]:
    return gpu_users([GpuReading("GPU-1", processes=processes)], [POD], GROUPS.get)


def test_processes_in_any_cgroup_of_a_container_are_added_up() -> None:
    processes = (GpuProcess(1, 100, sm_percent=10), GpuProcess(2, 50))
    assert used(*processes) == (GpuUse("GPU-1", "ns/a", "main", 150, 10),)


def test_processes_outside_pods_are_added_up_without_a_pod() -> None:
    assert used(GpuProcess(3, 7), GpuProcess(4, 1), GpuProcess(1)) == (
        GpuUse("GPU-1", memory_bytes=8),
        GpuUse("GPU-1", "ns/a", "main"),
    )


def test_a_driver_that_does_not_report_processes() -> None:
    assert gpu_users([GpuReading("GPU-1")], [POD], GROUPS.get) == ()
