import pytest

from agent.model.devices.holding import (
    DEVICES_CHECKPOINTS,
    GPU_CHECKPOINTS,
    CheckpointEntry,
    decode,
    encode,
)
from agent.model.pod.annotations import AnnotationError


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
