import msgspec
import pytest

from agent.model import bounds
from agent.model.bounds import JsonError

decoder = msgspec.json.Decoder(dict[str, int])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is not JSON"),
        (b'{"a": 1', "is not JSON"),
        (b'{"\xff": 1}', "is not JSON"),
        ('{"\ud800": 1}', "is not JSON"),
        (b'{"a": "1"}', "Expected `int`, got `str` - at `$[...]`"),
    ],
)
def test_every_failure_is_a_json_error(text: bytes | str, reason: str) -> None:
    with pytest.raises(JsonError, match=reason.replace("$[...]", r"\$\[\.\.\.\]")):
        bounds.decode(decoder, text)


def test_deep_nesting_is_a_json_error() -> None:
    with pytest.raises(JsonError, match="is not JSON"):
        bounds.decode(msgspec.json.Decoder(), "[" * 100_000)
