"""The sources of the kubelet's configuration: its own answer, a declared file, or its command line
and files. A source that can't be read has a problem and raises no error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from agent.kube import documents
from agent.kubelet import configuration, memory_manager_state
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration, flags
from agent.kubelet.statefile import StateFileError
from agent.model.cpuset import CpuSet
from agent.model.settings.agent import AgentSettings
from agent.node import kubelet_process
from agent.node.kubelet_process import FoundKubelets, KubeletProcess, find, ours
from agent.node.node_object import STRICT_CPU_RESERVATION
from agent.node.sources import SourceName

_SOURCES = (
    SourceName.KUBELET_PROCESS,
    SourceName.KUBELET_CONFIG,
    SourceName.KUBELET_CONFIGZ,
    SourceName.MEMORY_MANAGER_STATE,
)
_DROP_IN = ".conf"
_K3S_FILES = (".yaml", ".yml")
_K3S_DATA_DIR = "/var/lib/rancher/k3s"
_K3S_DROP_INS = "agent/etc/kubelet.conf.d"


class Reading(msgspec.Struct, frozen=True):
    """`whole`: the configuration, None when a part of it could not be read; then `words` and
    `content` hold the known parts of the command line and the files. `memory_policy`: the memory
    manager's, from its state, "" when unknown. `troubles`: by source, for every source that was
    read."""

    whole: KubeletConfiguration | None = None
    words: tuple[str, ...] = (kubelet_process.KUBELET,)
    content: Mapping[str, Any] = {}
    source: str = ""
    memory_policy: str = ""
    troubles: Mapping[SourceName, tuple[str, ...]] = {}


class _Files:
    """Reads the kubelet's files below `root` and collects `troubles`."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.troubles: list[str] = []
        self.names: list[str] = []

    def path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def sees(self, path: str) -> bool:
        """Whether a missing file is missing on the host too: an agent in a container mounts only
        some folders of the host."""
        top = path.lstrip("/").partition("/")[0]
        return os.path.isdir(self.path(top))

    def object(self, path: str, *, of_root: bool = True) -> dict[str, Any]:
        """The object in a YAML or JSON file; {} with a problem when it can't be read."""
        content = self._read(path, documents.read, of_root=of_root)
        if content is None:
            return {}
        if not isinstance(content, dict):
            self.troubles.append(f"{path}: its content must be an object")
            return {}
        return content

    def text(self, path: str) -> str:
        """The content of a file; "" with a problem when it can't be read."""
        return os.fsdecode(self._read(path, documents.text) or b"")

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        """The sorted names in a folder, and whether each is a folder."""
        try:
            with os.scandir(self.path(folder)) as found:
                return sorted((each.name, each.is_dir(follow_symlinks=False)) for each in found)
        except (OSError, ValueError) as error:
            self.troubles.append(f"{folder}: {_reason(error)}")
            return []

    def _read(self, path: str, read: Callable[[str], Any], *, of_root: bool = True) -> Any:
        self.names.append(path)
        if not path.startswith("/"):
            self.troubles.append(f"{path}: is relative to the kubelet's own folder")
            return None
        try:
            return read(self.path(path) if of_root else path)
        except (OSError, ValueError) as error:
            self.troubles.append(f"{path}: {_reason(error)}")
            return None


def _reason(error: Exception) -> str:
    """The reason without the path below `root`."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def read(settings: AgentSettings, own_group: Callable[[], str | None]) -> Reading:
    """Reads the first that applies of the kubelet's own answer, the declared file, and the files
    that its process names. `own_group`: the root of the agent's cgroup namespace."""
    troubles: dict[SourceName, tuple[str, ...]] = dict.fromkeys(_SOURCES, ())
    memory_policy = _memory_policy(settings, troubles)
    if settings.kubelet_configz:
        try:
            token, ca = settings.kubelet_token_file, settings.kubelet_ca_file
            answer = configuration.read_configz(settings.kubelet_configz, token, ca)
            if answer is not None:
                return Reading(answer, memory_policy=memory_policy, troubles=troubles)
        except ConfigurationError as error:
            troubles[SourceName.KUBELET_CONFIGZ] = (str(error),)
    found = find(os.path.join(settings.root, "proc"), own_group())
    kubelet = _only(found, settings)
    troubles[SourceName.KUBELET_PROCESS] = () if kubelet else _unclear(found)
    files = _Files(settings.root)
    reading = _of_files(settings, kubelet, files)
    unread = tuple(f"{kubelet.title}: {each}" if kubelet else each for each in files.troubles)
    whole = None
    if not unread:
        try:
            whole = configuration.of_command_line(reading.words, reading.content, reading.source)
        except ConfigurationError as error:
            unread = (str(error),)
    if kubelet is None:
        whole = None  # the kubelet's flags, which are not known, override the declared file
    troubles[SourceName.KUBELET_CONFIG] = unread
    return msgspec.structs.replace(
        reading, whole=whole, memory_policy=memory_policy, troubles=troubles
    )


def _only(found: FoundKubelets, settings: AgentSettings) -> KubeletProcess | None:
    """The node's kubelet; None when no process or several may be it."""
    return None if found.doubts else ours(found.kubelets, settings.root, settings.kubelet_dir)


def _unclear(found: FoundKubelets) -> tuple[str, ...]:
    several = ", ".join(each.title for each in found.kubelets)
    if len(found.kubelets) > 1:
        return (
            *found.doubts,
            f"several run, and not exactly one of them has our kubelet-dir: {several}",
        )
    return found.doubts


def _of_files(settings: AgentSettings, kubelet: KubeletProcess | None, files: _Files) -> Reading:
    """The content of the command line and of the readable files."""
    words = _words(kubelet, files) if kubelet else [kubelet_process.KUBELET]
    named = flags(words)
    content = {}
    if settings.kubelet_config:
        content = files.object(settings.kubelet_config, of_root=False)
    elif path := named.get("config"):
        content = files.object(path)
    for path in _drop_ins(kubelet, named, files) if kubelet else ():
        content = merged(content, files.object(path))
    source = ", ".join((*([kubelet.title] if kubelet else []), *files.names))
    return Reading(words=tuple(words), content=content, source=source)


def _words(kubelet: KubeletProcess, files: _Files) -> list[str]:
    """The kubelet's command line, with the flags that its program reads from files."""
    words = kubelet_process.own_words(kubelet.words)
    named = flags(kubelet.words)
    if kubelet_process.hides_flags(kubelet.words):
        files.troubles.append("it hides its flags; --kubelet-configz reads them from the kubelet")
    if kubelet.program == kubelet_process.KUBELITE:
        if path := named.get(kubelet_process.KUBELITE_ARGS_FLAG):
            words[1:1] = kubelet_process.words_of_file(files.text(path))
    elif kubelet.program == kubelet_process.K3S and len(words) == 1:
        # A kubelet-arg on the command line replaces those in the files.
        path = named.get("config") or named.get("c") or kubelet_process.K3S_CONFIG
        words += _k3s_words(path, files)
    return words


def _k3s_words(path: str, files: _Files) -> list[str]:
    if not files.sees(path):
        files.troubles.append(f"{path}: the agent does not see its folder")
        return []
    folder = f"{path}.d"
    paths = [path] if os.path.lexists(files.path(path)) else []
    if os.path.isdir(files.path(folder)):
        paths += [
            os.path.join(folder, name)
            for name, is_folder in files.entries(folder)
            if name.lower().endswith(_K3S_FILES) and not is_folder
        ]
    try:
        return kubelet_process.words_of_k3s([files.object(each) for each in paths], path)
    except ConfigurationError as error:
        files.troubles.append(str(error))
        return []


def _drop_ins(kubelet: KubeletProcess, named: Mapping[str, str], files: _Files) -> Iterable[str]:
    """Files that the kubelet merges into the first one, in its order."""
    folder = named.get("config-dir", "")
    if not folder and kubelet.program == kubelet_process.K3S:
        data_dir = flags(kubelet.words).get("data-dir") or _K3S_DATA_DIR
        own = os.path.join(data_dir, _K3S_DROP_INS)
        folder = own if os.path.isdir(files.path(own)) else ""
    return _below(folder, files) if folder else ()


def _below(folder: str, files: _Files) -> list[str]:
    """The drop-ins in a folder and its subfolders, in the order of filepath.WalkDir."""
    found: list[str] = []
    for name, is_folder in files.entries(folder):
        path = os.path.join(folder, name)
        if is_folder:
            found += _below(path, files)
        elif name.endswith(_DROP_IN):
            found.append(path)
    return found


def merged(content: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A drop-in applied to the content before it, as a JSON merge patch (RFC 7386; kubelet
    cmd/kubelet/app/server.go, mergeKubeletConfigurations)."""
    after = dict(content)
    for name, value in patch.items():
        before = after.get(name)
        if value is None:
            after.pop(name, None)
        elif isinstance(value, Mapping):
            after[name] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            after[name] = value
    return after


def inferred(
    reading: Reading, cpu_policy: str, reserved: CpuSet, *, strict: bool
) -> KubeletConfiguration | None:
    """The known part of the configuration; None when nothing is known. Flags override the kubelet's
    state and its PodResources (`cpu_policy`, `reserved` CPUs, `strict`: no pod runs on them; empty
    when unknown); these override the files, of which some could not be read."""
    said: dict[str, Any] = {}
    if cpu_policy:
        said["cpuManagerPolicy"] = cpu_policy
    if reading.memory_policy:
        said["memoryManagerPolicy"] = reading.memory_policy
    if reserved:
        said["reservedSystemCPUs"] = str(reserved)
    if strict:
        said["cpuManagerPolicyOptions"] = {STRICT_CPU_RESERVATION: "true"}
    if not said and not reading.content and len(reading.words) == 1:
        return None
    source = f"{reading.source or 'the kubelet'} (known in part)"
    try:
        return configuration.of_command_line(reading.words, merged(reading.content, said), source)
    except ConfigurationError:  # reported as a problem of its source
        return configuration.of_object(said, source)


def _memory_policy(settings: AgentSettings, troubles: dict[SourceName, tuple[str, ...]]) -> str:
    path = os.path.join(settings.kubelet_dir, memory_manager_state.FILE_NAME)
    try:
        state = memory_manager_state.read(path)
    except StateFileError as error:
        troubles[SourceName.MEMORY_MANAGER_STATE] = (str(error),)
        return ""
    return "" if state == memory_manager_state.MemoryManagerState() else state.policy
