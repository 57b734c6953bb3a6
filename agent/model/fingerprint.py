"""The fingerprint of a node's pods, by which a scheduler sees that a report is of the pods that it
knows: version 1 of the podfingerprint library (peers.md §1.7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import xxhash

_MARK: Final = "pfp0v001"


def of(pods: Iterable[tuple[str, str]]) -> str:
    """Of (namespace, name) of every pod, in any order."""
    each = sorted(
        xxhash.xxh64_intdigest(name, seed=xxhash.xxh64_intdigest(namespace))
        for namespace, name in pods
    )
    together = b"".join(hashed.to_bytes(8, "little") for hashed in each)
    return _MARK + xxhash.xxh64_hexdigest(together)
