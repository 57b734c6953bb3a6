"""The file of offered resources."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agent.model.bounds import JsonError
from agent.usage.batch_mid import Offer, OfferedResource, Term
from agent.usage.offered import Offered, read

OFFERED = Offered(
    5.0, (OfferedResource("kubernetes.io/batch-cpu", 500, Offer((Term("a", 700),)), 500),)
)


def test_the_file_has_what_was_offered(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(msgspec.json.encode(OFFERED))
    assert read(str(path)) == OFFERED
    assert OFFERED.amounts == {"kubernetes.io/batch-cpu": 500}


@pytest.mark.parametrize("text", [b"{", b'{"at": "x"}', b" " * (65 << 10)])
def test_a_file_that_cannot_be_read_has_an_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(text)
    with pytest.raises(JsonError):
        read(str(path))
