"""The common form of the kubelet's state files: JSON objects with a checksum inside.

The checksum is FNV-1a over the text that Go's spew prints of the object (`%#v`, sorted keys;
kubelet: pkg/kubelet/checkpointmanager/checksum/checksum.go, getChecksum). The `go_` functions
render values as spew does: the field of a struct is preceded by its Go type, the entries of a map
or a slice are not.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from agent.host import files
from agent.model import bounds
from agent.model.bounds import JsonError

_MAX_BYTES: Final = 32 << 20
"""A thousand times a large node's file."""
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


class Checked(enum.Enum):
    """Whether a checksum matches its content."""

    VERIFIED = "verified"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"
    """The file has no checksum, or is of an unknown version."""


class StateFileError(ValueError):
    """The file can't be read (torn, or of an unknown format), or its checksum is wrong; the message
    names the field, and the file if `read` of a module raised it."""


class State(Protocol):
    """The common fields of all files' values."""

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
        raise StateFileError(f"{path}: {state.checksum_field} does not match the content")
    return state


def load(path: str) -> bytes | None:
    """The content of the file, None if it is absent.

    Raises StateFileError."""
    try:
        return files.read(path, _MAX_BYTES)
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


def _unwrap(outer: dict[str, Any]) -> tuple[dict[str, Any], Checked] | None:
    """The content of the field `data`, a JSON text with its own checksum; None without this field.
    The other fields are for older kubelets. Raises StateFileError."""
    if "data" not in outer:
        return None
    data = field(outer, "data", str, "")
    recorded = number(outer, "dataChecksum" if "dataChecksum" in outer else "checksum")
    try:
        return parse(data), matching_version(recorded, [(1, checksum_of("string", data))])[1]
    except StateFileError as error:
        raise StateFileError(f"data: {error}") from None


class ManagerState(NamedTuple):
    """The content of a manager's file."""

    content: dict[str, Any]
    checked: Checked | None
    """Whether the checksum of the wrapped content matches; None if it is not wrapped, and has the
    checksum in it."""
    problems: list[str]
    """The unknown fields."""


def manager_state(raw: bytes, fields: Set[str], fields_in_data: Set[str]) -> ManagerState:
    """The file of the CPU manager or the memory manager.

    `fields`: the fields of the content.
    `fields_in_data`: the fields of content that is wrapped.

    Raises StateFileError."""
    outer = parse(raw)
    unwrapped = _unwrap(outer)
    content, checked = unwrapped or (outer, None)
    if content.get("policyName") is None:
        raise StateFileError("policyName is missing")
    known_fields = fields | {"checksum"}
    if unwrapped is None:
        return ManagerState(content, checked, unknown_fields(outer, known_fields))
    problems = unknown_fields(outer, known_fields | {"data", "dataChecksum"})
    return ManagerState(
        content, checked, problems + unknown_fields(content, fields_in_data, "data.")
    )


def matching_version(recorded: int, forms: Iterable[tuple[int, int]]) -> tuple[int | None, Checked]:
    """The version of a content, None if unknown, and whether its checksum matches.

    `recorded`: the checksum in the file, 0 without one, which a kubelet does not check either.
    `forms`: the possible versions of the content with their checksums, likeliest first."""
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
    value: int = field(content, name, int, 0)
    return value


def field(content: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    """A field of a JSON object; the default when absent or null. Raises StateFileError."""
    value = content.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise StateFileError(f"{name}: is a {type(value).__name__}, not a {kind.__name__}")
    return value


def unknown_fields(content: dict[str, Any], known: Set[str], place: str = "") -> list[str]:
    """A problem for each unknown field."""
    return [f"{place}{name}: unknown field" for name in sorted(content.keys() - known)]


Key = TypeVar("Key", int, str)

NIL: Final = "<nil>"
"""The text of a nil map, slice or pointer of Go; an empty one has another text."""

_OFFSET: Final = 0x811C9DC5
_PRIME: Final = 0x01000193


def fnv1a(data: bytes) -> int:
    """The 32-bit hash."""
    value = _OFFSET
    for byte in data:
        value = (value ^ byte) * _PRIME & 0xFFFFFFFF
    return value


def checksum_of(kind: str, rendered: str) -> int:
    """The checksum of an object of a Go type, such as `*state.CPUManagerCheckpoint`."""
    return fnv1a(f"({kind}){rendered}".encode())


def go_struct(*fields: tuple[str, str, str]) -> str:
    """Fields as name, Go type and rendered value."""
    return "{" + " ".join(f"{name}:({kind}){value}" for name, kind, value in fields) + "}"


def go_map(entries: Mapping[Key, Any] | None, render: Callable[[Any], str] = str) -> str:
    """Keys ascending: numbers by value, strings by their bytes."""
    if entries is None:
        return NIL
    return "map[" + " ".join(f"{key}:{render(entries[key])}" for key in sorted(entries)) + "]"


def go_slice(items: Iterable[Any] | None, render: Callable[[Any], str] = str) -> str:
    """A slice in its own order; bytes are numbers."""
    if items is None:
        return NIL
    return "[" + " ".join(render(item) for item in items) + "]"


def go_pointer(rendered: str) -> str:
    """A pointer inside a map or list, with its target."""
    return f"<*>{rendered}"
