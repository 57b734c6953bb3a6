from __future__ import annotations

import pytest

from agent.model.pod import apiobjects
from agent.model.pod.apiobjects import GROUP_ANNOTATION, GroupError, PodGroup, group_of
from tests.fixtures.fleet import pod


def annotated(text: str) -> apiobjects.ApiPod:
    return apiobjects.from_object(pod("p", annotations={GROUP_ANNOTATION: text}))


def test_a_group_is_a_name_and_a_size() -> None:
    assert group_of(annotated("train.0/8")) == PodGroup("default", "train.0", 8)
    assert group_of(apiobjects.from_object(pod("p"))) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not NAME/SIZE"),
        ("train", "'train' is not NAME/SIZE"),
        ("/2", "'/2' is not NAME/SIZE"),
        ("Train/2", "'Train/2' is not NAME/SIZE"),
        ("train/two", "'train/two' is not NAME/SIZE"),
        ("train/-1", "'train/-1' is not NAME/SIZE"),
        ("train/٣", "'train/٣' is not NAME/SIZE"),
        ("train/0", "SIZE 0 is not 1 to 64"),
        ("train/65", "SIZE 65 is not 1 to 64"),
    ],
)
def test_an_invalid_annotation_is_named(text: str, reason: str) -> None:
    with pytest.raises(GroupError) as raised:
        group_of(annotated(text))
    assert str(raised.value) == f"pod default/p: annotation topolet.io/group: {reason}"
