"""The guard's JSON against the standard library's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.guard.json import ScanError, decoded, encoded, quoted

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_values_are_read(value: object) -> None:
    assert decoded(json.dumps(value).encode()) == value
    assert decoded(f" {json.dumps(value, indent=1)}\n".encode()) == value


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()))
def test_objects_are_written(values: dict[str, str | int]) -> None:
    assert json.loads(encoded(values)) == values


@given(st.text())
def test_texts_are_quoted_in_ascii(text: str) -> None:
    assert json.loads(quoted(text)) == text
    assert quoted(text).isascii()
    assert quoted(text).isprintable()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"{]", b"1 2", b"nul", b"\xff", b"[" * 100_000, b'"\x01"']
)
def test_other_texts_are_an_error(text: bytes) -> None:
    with pytest.raises(ScanError):
        decoded(text)


def test_an_error_is_raised_without_the_package_json_too() -> None:
    code = """
import sys; sys.path.append(sys.argv[1])
from agent.guard.json import ScanError, decoded
assert "json" not in sys.modules and "re" not in sys.modules
for text in (b'{"torn', b"{]", b"nul"):
    try:
        decoded(text)
    except ScanError:
        print("ScanError")
"""
    folder = str(Path(__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", code, folder]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"ScanError\n" * 3
