"""Bounds, in bytes and in entries, of texts that others write, and decoding of JSON. A reader
checks the size of a text before it decodes the text; every fault of a text is a JsonError.

The API server accepts 256 KiB of annotations per object (Kubernetes, TotalAnnotationSizeLimitB in
apimachinery/pkg/api/validation/objectmeta.go). Decoded to small values, these take a hundred times
as much memory, on a node that the pod's author can choose. So the bounds of a pod's annotations are
only as large as a machine needs: 64 devices, 100 containers or 3,000 scattered CPUs fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

POD_VALUE_BYTES: Final = 8 << 10
"""The limit of a pod's annotation with one value, or with a list of names."""
POD_TEXT_BYTES: Final = 16 << 10
"""The limit of a pod's annotation that lists CPUs and amounts."""
POD_LIST_BYTES: Final = 32 << 10
"""The limit of a pod's annotation that lists containers or devices with their amounts."""
OBJECT_VALUE_BYTES: Final = 32 << 10
"""The limit of an annotation of a Node, NodeResourceTopology or Device with one value."""
OBJECT_LIST_BYTES: Final = 256 << 10
"""The limit of an annotation that lists all CPUs, pods or devices of a node: the API server's."""

MAX_CONTAINERS: Final = 256
"""The most containers of a pod in one of its annotations."""
MAX_NODES: Final = 64
"""NUMA nodes of a machine, with those of memory alone: GB200 has 34."""
MAX_CPU_NODES: Final = 32
"""NUMA nodes with CPUs: two sockets with 16 L3 caches each have so many, if each is a node."""
MAX_NODE_ID: Final = 1_023
"""The highest id of a NUMA node (CONFIG_NODES_SHIFT)."""
MAX_CPUS: Final = 8_192
"""The kernel's maximum (CONFIG_NR_CPUS)."""
MAX_SOCKETS: Final = 64
MAX_CACHES: Final = 1_024
"""L3 caches of a machine."""
MAX_THREADS: Final = 16
"""The most threads of a core; POWER has 8."""
MAX_RESOURCES: Final = 64
"""Resources in one list of amounts."""
MAX_DEVICES: Final = 1_024
"""The most devices of a node, of all types."""
MAX_DEVICE_TYPES: Final = 32
MAX_FUNCTIONS: Final = 4_096
"""Virtual functions of a node."""
MAX_PODS: Final = 4_096
"""The most pods in a list of a node's object, with one container or resource for each."""

REASON_CHARACTERS: Final = 300
"""The limit of an error's reason, which may quote texts of others."""


def excess(text: str, most_bytes: int) -> str:
    """The message about a text that is too long; "" if it is not."""
    size = len(text)
    if size <= most_bytes and not text.isascii():
        size = len(text.encode(errors="surrogatepass"))
    return f"has more than {most_bytes} bytes" if size > most_bytes else ""


def kept(texts: Mapping[str, str], bounds: Mapping[str, int]) -> dict[str, str]:
    """The texts with the keys in `bounds`, each cut to one character more than its bound: a text
    that is too long stays too long, so that its reader refuses it. A text that is not ASCII is kept
    as one character for each of its bytes (Latin-1): Python would store the whole text with up to
    four bytes a character. A control character is kept as a blank: JSON would have six characters
    for it. No valid value has such characters, except for white space between parts of JSON."""
    return {key: _narrow(texts[key])[: most + 1] for key, most in bounds.items() if key in texts}


def _narrow(text: str) -> str:
    narrow = text if text.isascii() else text.encode(errors="replace").decode("latin-1")
    return narrow if narrow.isprintable() else narrow.translate(_BLANKS)


_BLANKS: Final = dict.fromkeys(range(32), " ")


def reason(text: str) -> str:
    """The text, cut to REASON_CHARACTERS."""
    return text if len(text) <= REASON_CHARACTERS else text[: REASON_CHARACTERS - 3] + "..."


def unknown_value(field: str, value: str, known: Iterable[str]) -> str:
    """The message about a value that is not one of the known ones."""
    return f"{field}: {value[:_QUOTED_CHARACTERS]!r} is not one of {', '.join(known)}"


_QUOTED_CHARACTERS: Final = 60

Value = TypeVar("Value")


class JsonError(ValueError):
    """A text that is not JSON, or does not have the wanted fields; the message names the place."""


def decode(decoder: msgspec.json.Decoder[Value], text: bytes | str) -> Value:
    """Raises JsonError, also for bytes that are not UTF-8 and for endless nesting, which msgspec
    reports as other errors."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise JsonError(reason(str(error))) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise JsonError(f"is not JSON: {error}") from None
