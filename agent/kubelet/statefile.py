"""What the kubelet's state files have in common: JSON objects with a checksum inside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from agent.kubelet import checksum
from agent.kubelet.checksum import Checked
from agent.model import jsontext
from agent.model.jsontext import JsonError

_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class StateFileError(ValueError):
    """The file can't be read (torn, or of an unknown shape), or its checksum is wrong; the message
    names the field, and the file where `read` of a module raised it."""


def load(path: str) -> bytes | None:
    """None of a file that is absent. Raises StateFileError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateFileError(f"{path}: {error.strerror}") from error


def parse(text: bytes | str) -> dict[str, Any]:
    """Raises StateFileError."""
    try:
        return jsontext.decode(_OBJECT, text)
    except JsonError as error:
        raise StateFileError(str(error)) from None


def unwrap(outer: dict[str, Any]) -> tuple[dict[str, Any], Checked] | None:
    """The content of `data`, a JSON text that its own checksum covers; None where there is none.
    What stands beside it is for kubelets that don't know `data`. Raises StateFileError."""
    if "data" not in outer:
        return None
    data = member(outer, "data", str, "")
    recorded = number(outer, "dataChecksum" if "dataChecksum" in outer else "checksum")
    try:
        return parse(data), compare(recorded, [checksum.of("string", data)])
    except StateFileError as error:
        raise StateFileError(f"data: {error}") from None


def compare(recorded: int, computed: Iterable[int]) -> Checked:
    """The recorded checksum beside the one of each form that the file may have had in memory; a
    kubelet does not check 0, and with no known form nothing can be said."""
    known = list(computed)
    if not recorded or not known:
        return Checked.UNKNOWN
    return Checked.VERIFIED if recorded in known else Checked.MISMATCH


def number(content: dict[str, Any], name: str) -> int:
    """A checksum; 0 where it is absent. Raises StateFileError."""
    value: int = member(content, name, int, 0)
    return value


def member(content: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """A field of a JSON object; the default where it is absent or null. Raises StateFileError."""
    value = content.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateFileError(f"{name}: is a {type(value).__name__}, no {kind.__name__}")
    return value
