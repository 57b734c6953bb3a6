"""The kubelet's cpu_manager_state file: the CPUs that its static policy assigned (kubelet:
pkg/kubelet/cm/cpumanager/state/checkpoint.go).

Version 1 has CPUs by container id; version 2 by pod uid and container name; version 3 also those of
whole pods. Version 4 has all of this a second time, as a JSON text in `data`, which is what its
kubelet reads.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from agent.host import kernel_events
from agent.host.kernel_events import Inotify
from agent.kubelet import statefile
from agent.kubelet.statefile import Checked
from agent.model.cpu.cpuset import EMPTY, CpuSet, CpuSetError, union

FILE_NAME: Final = "cpu_manager_state"

Entries = dict[str, dict[str, CpuSet]]
"""By pod uid and container name."""

_CONTENT: Final = frozenset({"policyName", "defaultCpuSet", "entries", "podEntries"})


class CpuManagerState(msgspec.Struct, frozen=True):
    """The state of the kubelet's CPU manager, without entries that can't be read."""

    policy: str = "none"
    default: CpuSet = EMPTY
    """The shared CPUs."""
    entries: Entries = {}
    by_container_id: dict[str, CpuSet] = {}
    """Only version 1 has these."""
    pods: dict[str, CpuSet] = {}
    """The CPUs of whole pods by uid."""
    originals: Entries = {}
    """The CPUs of containers before they were resized."""
    version: int | None = None
    """None for an unknown version, whose known fields are read."""
    checked: Checked = Checked.UNKNOWN
    problems: tuple[str, ...] = ()

    @property
    def checksum_field(self) -> str:
        return "dataChecksum" if self.version == 4 else "checksum"

    @property
    def static(self) -> bool:
        return self.policy == "static"

    @property
    def by_uid(self) -> dict[str, CpuSet]:
        """All CPUs of a pod and of its containers, by pod uid."""
        return {
            uid: union(self.entries.get(uid, {}).values()) | self.pods.get(uid, EMPTY)
            for uid in sorted(self.entries.keys() | self.pods.keys())
        }


def read(path: str) -> CpuManagerState:
    """The default value for an absent file: the kubelet has no policy, or does not exist. Raises
    StateFileError, also for a wrong checksum."""
    return statefile.read(path, decode, CpuManagerState())


class CpuManagerStateWatch:
    """Reports changes of the file, which the kubelet replaces. The folder may appear late."""

    def __init__(self, folder: str) -> None:
        """Raises OSError when the limit of inotify instances is reached."""
        self._folder = folder
        self._queue = Inotify()
        self.watching = False
        self.try_again()

    def fileno(self) -> int:
        return self._queue.fileno()

    def try_again(self) -> None:
        """Watches the folder once it exists."""
        if not self.watching:
            with contextlib.suppress(OSError):
                self._queue.watch(self._folder, kernel_events.MOVED_TO | kernel_events.CLOSE_WRITE)
                self.watching = True

    def read(self) -> bool:
        """Whether the file has changed."""
        events = self._queue.read()
        if any(each.mask & kernel_events.IGNORED for each in events):
            self.watching = False
        return any(each.name == FILE_NAME or each.mask & kernel_events.OVERFLOW for each in events)

    def close(self) -> None:
        self._queue.close()


@functools.lru_cache(maxsize=1)  # the agent reads it often, the kubelet rarely writes it
def decode(raw: bytes) -> CpuManagerState:
    """Raises StateFileError for a torn text or an unknown format; `checked` reports a wrong
    checksum."""
    content, checked, problems = statefile.manager_state(raw, _CONTENT, _CONTENT | {"originals"})
    policy = statefile.field(content, "policyName", str, "")
    default = statefile.field(content, "defaultCpuSet", str, "")
    version: int | None = 4
    if checked is None:
        recorded = statefile.number(content, "checksum")
        version, checked = statefile.matching_version(recorded, () if problems else _forms(content))
    by_pod, by_id = _split(content)
    return CpuManagerState(
        policy=policy,
        default=_cpus(default, "defaultCpuSet", problems),
        entries=_entries(by_pod, "entries", problems),
        by_container_id=_readable(by_id, "entries", problems),
        pods=_readable(_pod_texts(content), "podEntries", problems),
        originals=_entries(_original_texts(content), "originals", problems),
        version=version,
        checked=checked,
        problems=tuple(problems),
    )


def encode(state: CpuManagerState) -> bytes:
    """The file as the kubelet writes it, with its checksum: version 2, 3, or 4 without originals.
    Raises ValueError for any other."""
    if state.version not in (2, 3, 4) or state.originals or (state.version == 2 and state.pods):
        raise ValueError(f"no cpu_manager_state of version {state.version} can be written")
    content: dict[str, Any] = {"policyName": state.policy, "defaultCpuSet": str(state.default)}
    entries = {
        uid: {name: str(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(state.entries.items())
    }
    pods = {uid: {"cpuSet": str(cpus)} if cpus else {} for uid, cpus in sorted(state.pods.items())}
    content |= {"entries": entries} if entries else {}
    content |= {"podEntries": pods} if pods else {}
    if state.version == 4:
        data = msgspec.json.encode(content).decode()
        outer = content | {
            "checksum": 0,
            "data": data,
            "dataChecksum": statefile.checksum_of("string", data),
        }
        return msgspec.json.encode(outer)
    computed = next(computed for version, computed in _forms(content) if version == state.version)
    return msgspec.json.encode(content | {"checksum": computed})


def _forms(content: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """The versions that this content may have, with their checksums, likeliest first: without
    entries several are equal, and version 2 was written with two type names."""
    by_pod, by_id = _split(content)
    unreadable: list[str] = []
    pods = _readable(_pod_texts(content), "podEntries", unreadable)
    if unreadable or not _texts_only(by_pod, by_id):
        return
    head = (
        ("PolicyName", "string", content["policyName"]),
        ("DefaultCPUSet", "string", content.get("defaultCpuSet") or ""),
    )
    tail = ("Checksum", "checksum.Checksum", "0")
    nested = (
        "Entries",
        "map[string]map[string]string",
        statefile.go_map(by_pod, statefile.go_map),
    )
    if not by_id and not pods:
        text = statefile.go_struct(*head, nested, tail)
        yield 2, statefile.checksum_of("*state.CPUManagerCheckpoint", text)
        yield 2, statefile.checksum_of("*state.CPUManagerCheckpointV2", text)
    if not by_id:
        of_pods = ("PodEntries", "state.PodCPUAssignments", statefile.go_map(pods, _pod_entry))
        text = statefile.go_struct(*head, nested, of_pods, tail)
        yield 3, statefile.checksum_of("*state.CPUManagerCheckpoint", text)
        yield 3, statefile.checksum_of("*state.CPUManagerCheckpointV3", text)
    if not by_pod and not pods:
        flat = ("Entries", "map[string]string", statefile.go_map(by_id))
        yield (
            1,
            statefile.checksum_of(
                "*state.CPUManagerCheckpoint", statefile.go_struct(*head, flat, tail)
            ),
        )


def _pod_entry(cpus: CpuSet) -> str:
    elements = statefile.go_map(dict.fromkeys(cpus, "{}"))
    inside = statefile.go_struct(("elems", "map[int]struct {}", elements))
    return statefile.go_struct(("CPUSet", "cpuset.CPUSet", inside))


def _split(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries by pod uid, whose values are objects, and those by container id, whose values are
    strings."""
    entries = statefile.field(content, "entries", dict, {})
    by_id = {key: value for key, value in entries.items() if isinstance(value, str)}
    return {key: value for key, value in entries.items() if key not in by_id}, by_id


def _texts_only(by_pod: dict[str, Any], by_id: dict[str, Any]) -> bool:
    if by_pod and by_id:
        return False
    return all(
        isinstance(containers, dict) and all(isinstance(each, str) for each in containers.values())
        for containers in by_pod.values()
    )


def _pod_texts(content: dict[str, Any]) -> dict[str, Any]:
    pods = statefile.field(content, "podEntries", dict, {})
    return {
        uid: entry.get("cpuSet", "") if isinstance(entry, dict) else entry
        for uid, entry in pods.items()
    }


def _original_texts(content: dict[str, Any]) -> dict[str, Any]:
    originals = statefile.field(content, "originals", dict, {})
    return {
        uid: {
            name: each.get("original") if isinstance(each, dict) else each
            for name, each in containers.items()
        }
        if isinstance(containers, dict)
        else containers
        for uid, containers in originals.items()
    }


def _entries(by_pod: dict[str, Any], place: str, problems: list[str]) -> Entries:
    entries = {}
    for uid, containers in sorted(by_pod.items()):
        if isinstance(containers, dict):
            entries[uid] = _readable(containers, f"{place}.{uid}", problems)
        else:
            problems.append(f"{place}.{uid}: {containers!r:.80} is not an object")
    return entries


def _readable(texts: dict[str, Any], place: str, problems: list[str]) -> dict[str, CpuSet]:
    found = {}
    for name, text in sorted(texts.items()):
        before = len(problems)
        cpus = _cpus(text, f"{place}.{name}", problems)
        if len(problems) == before:
            found[name] = cpus
    return found


def _cpus(text: Any, place: str, problems: list[str]) -> CpuSet:
    """The CPUs in the text, none if it is invalid, which is added to the problems."""
    if not isinstance(text, str):
        problems.append(f"{place}: {text!r:.80} is not a CPU list")
        return EMPTY
    try:
        return CpuSet.parse(text)
    except CpuSetError as error:
        problems.append(f"{place}: {error}")
        return EMPTY
