"""What the kubelet's state files have in common: JSON objects with a checksum inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any, Final, Protocol, TypeVar

import msgspec

from agent.kubelet import checksum
from agent.kubelet.checksum import Checked
from agent.model import bounds
from agent.model.bounds import JsonError

_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class StateFileError(ValueError):
    """The file can't be read (torn, or of an unknown shape), or its checksum is wrong; the message
    names the field, and the file where `read` of a module raised it."""


class State(Protocol):
    """What the value of every file has."""

    @property
    def checked(self) -> Checked: ...

    @property
    def checksum_field(self) -> str:
        """The field that `checked` is about."""
        ...


Some = TypeVar("Some", bound=State)


def read(path: str, decode: Callable[[bytes], Some], absent: Some) -> Some:
    """Raises StateFileError that names the path, also for a checksum that is wrong."""
    raw = load(path)
    if raw is None:
        return absent
    try:
        state = decode(raw)
    except StateFileError as error:
        raise StateFileError(f"{path}: {error}") from None
    if state.checked is Checked.MISMATCH:
        raise StateFileError(f"{path}: {state.checksum_field} is not that of the content")
    return state


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
        return bounds.decode(_OBJECT, text)
    except JsonError as error:
        raise StateFileError(str(error)) from None


def unwrap(outer: dict[str, Any]) -> tuple[dict[str, Any], Checked] | None:
    """The content of `data`, a JSON text with its own checksum; None without it. The other fields
    are for kubelets that don't know `data`. Raises StateFileError."""
    if "data" not in outer:
        return None
    data = member(outer, "data", str, "")
    recorded = number(outer, "dataChecksum" if "dataChecksum" in outer else "checksum")
    try:
        return parse(data), judge(recorded, [(1, checksum.of("string", data))])[1]
    except StateFileError as error:
        raise StateFileError(f"data: {error}") from None


def judge(recorded: int, forms: Iterable[tuple[int, int]]) -> tuple[int | None, Checked]:
    """The version of a content and the state of its checksum. `forms` are its possible versions
    with their checksums, likeliest first; without any the version is unknown. A kubelet does not
    check 0."""
    first = None
    for version, computed in forms:
        if recorded and computed == recorded:
            return version, Checked.VERIFIED
        first = first or version
        if not recorded:
            break
    return first, Checked.MISMATCH if recorded and first else Checked.UNKNOWN


def number(content: dict[str, Any], name: str) -> int:
    """A checksum; 0 when absent. Raises StateFileError."""
    value: int = member(content, name, int, 0)
    return value


def member(content: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """A field of a JSON object; the default when absent or null. Raises StateFileError."""
    value = content.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateFileError(f"{name}: is a {type(value).__name__}, no {kind.__name__}")
    return value


def strange(content: dict[str, Any], known: Set[str], place: str = "") -> list[str]:
    """A problem for each field that is not known."""
    return [f"{place}{name}: not known here" for name in sorted(content.keys() - known)]
