import msgspec
import pytest

from agent.model import jsontext
from agent.model.jsontext import JsonError

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
def test_every_fault_is_one_error(text: bytes | str, reason: str) -> None:
    with pytest.raises(JsonError, match=reason.replace("$[...]", r"\$\[\.\.\.\]")):
        jsontext.decode(decoder, text)


def test_nesting_without_end_is_no_recursion_error() -> None:
    with pytest.raises(JsonError, match="is not JSON"):
        jsontext.decode(msgspec.json.Decoder(), "[" * 100_000)
