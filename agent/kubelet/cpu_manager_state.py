"""The kubelet's cpu_manager_state file (peers.md §3.8): which CPUs its static policy gave away."""

from __future__ import annotations

import msgspec

from agent.model import jsontext
from agent.model.cpuset import CpuSet, CpuSetError, union
from agent.model.jsontext import JsonError

FILE_NAME = "cpu_manager_state"


class CpuManagerStateError(ValueError):
    """The file can't be read (torn, or of an unknown shape); the message names it and the field."""


class CpuManagerState(msgspec.Struct, frozen=True):
    """`by_uid`: the union of the CPUs of a pod's containers, by pod uid."""

    policy: str = "none"
    by_uid: dict[str, CpuSet] = {}

    @property
    def static(self) -> bool:
        return self.policy == "static"


class _File(msgspec.Struct, rename="camel"):
    policy_name: str
    entries: dict[str, dict[str, str]] = {}


_decoder = msgspec.json.Decoder(_File)


def read(path: str) -> CpuManagerState:
    """An absent file is a kubelet without a policy, or none. Raises CpuManagerStateError."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return CpuManagerState()
    except OSError as error:
        raise CpuManagerStateError(f"{path}: {error.strerror}") from error
    try:
        content = jsontext.decode(_decoder, raw)
    except JsonError as error:
        raise CpuManagerStateError(f"{path}: {error}") from None
    by_uid = {}
    for uid, containers in sorted(content.entries.items()):
        try:
            by_uid[uid] = union(CpuSet.parse(text) for text in containers.values())
        except CpuSetError as error:
            raise CpuManagerStateError(f"{path}: entries.{uid}: {error}") from None
    return CpuManagerState(content.policy_name, by_uid)
