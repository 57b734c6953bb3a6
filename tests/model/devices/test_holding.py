import pytest

from agent.model.devices.holding import (
    DEVICES_CHECKPOINTS,
    HoldingSource,
    ReportedDevices,
    decode,
    encode,
)
from agent.model.pod.annotations import AnnotationError


def test_no_holdings_are_encoded_as_no_annotation() -> None:
    assert encode(()) == {}
    assert decode({}) == ()


@pytest.mark.parametrize(
    ("text", "grants"),
    [
        ("", ()),
        ("null", ()),
        ("[]", ()),
        ('[{"podUID":"a"}]', (ReportedDevices("a", "", "", (), HoldingSource.CHECKPOINT),)),
        (
            '[{"podUID":"a","containerName":"c","resourceName":"r","deviceIDs":["GPU-1"],'
            '"allocResp":"AAAA","more":1}]',
            (ReportedDevices("a", "c", "r", ("GPU-1",), HoldingSource.CHECKPOINT),),
        ),
        (
            '[{"podUID":"a","deviceIDs":null}]',
            (ReportedDevices("a", "", "", (), HoldingSource.CHECKPOINT),),
        ),
    ],
)
def test_annotations_of_other_writers(text: str, grants: tuple[ReportedDevices, ...]) -> None:
    assert decode({DEVICES_CHECKPOINTS: text}) == grants


@pytest.mark.parametrize("text", ["{", "{}", '["a"]', '[{"deviceIDs":"GPU-1"}]', "[" * 100_000])
def test_an_error_names_the_annotation(text: str) -> None:
    with pytest.raises(AnnotationError, match=DEVICES_CHECKPOINTS):
        decode({DEVICES_CHECKPOINTS: text})
