from __future__ import annotations

import msgspec
import pytest

from agent.model.objects import LabelSelector

LABELS = {"tier": "a", "zone": "1"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("{}", True),
        ('{"matchLabels": null, "matchExpressions": null}', True),
        ('{"matchLabels": {"tier": "a"}}', True),
        ('{"matchLabels": {"tier": "a", "zone": "2"}}', False),
        ('{"matchLabels": {"rack": ""}}', False),
        ('{"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]}', True),
        ('{"matchExpressions": [{"key": "tier", "operator": "In", "values": ["b"]}]}', False),
        ('{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["b"]}]}', False),
        ('{"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["b"]}]}', True),
        ('{"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}', False),
        ('{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["a"]}]}', True),
        ('{"matchExpressions": [{"key": "tier", "operator": "Exists"}]}', True),
        ('{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}', False),
        ('{"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}', False),
        ('{"matchExpressions": [{"key": "rack", "operator": "DoesNotExist"}]}', True),
        (
            '{"matchLabels": {"tier": "a"}, '
            '"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}',
            False,
        ),
    ],
)
def test_matching(text: str, matches: bool) -> None:
    assert msgspec.json.decode(text, type=LabelSelector).matches(LABELS) == matches


def test_an_unknown_operator() -> None:
    with pytest.raises(msgspec.ValidationError, match="operator"):
        msgspec.json.decode(
            '{"matchExpressions": [{"key": "tier", "operator": "Gt"}]}', type=LabelSelector
        )
