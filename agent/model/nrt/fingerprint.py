"""The fingerprint of a node's pods, by which a scheduler checks that a report counts the pods that
it knows: version 1 of the library k8stopologyawareschedwg/podfingerprint (podfingerprint.go,
Sign)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import xxhash

_MARK: Final = "pfp0v001"


def of(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of pods, given as (namespace, name) in any order."""
    return combined(pod_hash(namespace, name) for namespace, name in pods)


def pod_hash(namespace: str, name: str) -> int:
    return xxhash.xxh64_intdigest(name, seed=xxhash.xxh64_intdigest(namespace))


def combined(hashes: Iterable[int]) -> str:
    """The fingerprint of the hashes of all pods, in any order."""
    joined = b"".join(each.to_bytes(8, "little") for each in sorted(hashes))
    return _MARK + xxhash.xxh64_hexdigest(joined)
