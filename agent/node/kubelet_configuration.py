"""The configuration of this node's kubelet, read periodically: from its /configz, from a declared
file, or from its command line and files. A source that can't be read is reported as a problem and
raises no error.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from agent.host.daemon import Periodic
from agent.kube import auth, documents
from agent.kubelet import configuration, cpu_manager_state, memory_manager_state
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration, flags
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.kubelet.statefile import StateFileError
from agent.model.cpu.cpuset import EMPTY, CpuSet
from agent.model.cpu.topology import Topology
from agent.model.nrt.node_annotations import NodeConfiguration
from agent.model.settings.agent import AgentSettings
from agent.node import kubelet_process
from agent.node.kubelet_process import FoundKubelets, KubeletProcess, find
from agent.node.node_configuration import (
    STRICT_CPU_RESERVATION,
    CombinationError,
    check_combination,
    with_kubelet,
    with_settings,
)
from agent.node.sources import SourceName, Sources

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 60.0
"""A kubelet may start after the agent, or restart with another configuration."""
SETTLE_SECONDS: Final = 1.0
"""From an event to the read that it requests: a kubelet with a static policy writes its state
often."""
FIRST_SECONDS: Final = 15.0
"""The agent's start waits this long for the first read: the kubelet may hang."""


class CpuManagerStatus(msgspec.Struct, frozen=True):
    """What other sources show of the kubelet's CPU manager."""

    state: CpuManagerState | None = None
    """Its file `state`, None without one."""
    reserved: CpuSet = EMPTY
    """The CPUs that it reserves according to PodResources."""

    @property
    def policy(self) -> str:
        """The CPU manager's policy, "" when it is unknown."""
        return self.state.policy if self.state else ""

    @property
    def strict(self) -> bool:
        """Whether no pod may run on the reserved CPUs. Without this option they are among the
        shared CPUs of the state (cpumanager/policy_static.go, validateState)."""
        if self.state is None or not self.state.static:
            return False
        return bool(self.reserved) and not self.reserved & self.state.default


UNKNOWN_CPU_MANAGER: Final = CpuManagerStatus()


class KubeletConfigurationView:
    """Reads the kubelet's configuration periodically, on a thread of its own. While a part of it
    can't be read, the last known configuration stays in force; without one it is inferred from
    other sources.

    `own_group`: the root of the agent's cgroup namespace.
    `changed`: called on any thread after a change.
    `last`: the configuration that the last agent knew."""

    def __init__(
        self,
        settings: AgentSettings,
        sources: Sources | None = None,
        own_group: Callable[[], str | None] = lambda: "/",
        changed: Callable[[], None] = lambda: None,
        last: KubeletConfiguration | None = None,
    ) -> None:
        self._settings = settings
        self._sources = sources or Sources()
        self._own_group = own_group
        self._changed = changed
        self._reading = Reading()
        self._known = last
        self._refused: CombinationError | None = None
        self._was_read = threading.Event()
        self._reader = Periodic("kubelet-configuration", PERIOD_SECONDS, self.read, SETTLE_SECONDS)

    @property
    def known(self) -> KubeletConfiguration | None:
        """The last configuration that could be read as a whole."""
        return self._known

    def start(self) -> None:
        """Reads the configuration now, every PERIOD_SECONDS, and soon after `refresh`. Returns
        after the first read or FIRST_SECONDS. Raises CombinationError when it contradicts the
        settings."""
        self._reader.start()
        self._was_read.wait(FIRST_SECONDS)
        if self._refused is not None:
            self.close()
            raise self._refused
        log.info("kubelet: %s", self._reading.source or "no configuration was read")

    def refresh(self) -> None:
        """Reads the configuration soon: the kubelet may have restarted."""
        self._reader.hurry()

    def close(self) -> None:
        """Ends the thread without waiting for the kubelet."""
        self._reader.stop(0.0)

    @property
    def has_no_static_policy(self) -> bool:
        """Whether the kubelet's configuration, read as a whole, has no static CPU manager
        policy."""
        whole = self._reading.whole
        return whole is not None and not whole.static

    def in_force(
        self, status: CpuManagerStatus = UNKNOWN_CPU_MANAGER
    ) -> KubeletConfiguration | None:
        """The last known configuration, unless the state of the kubelet's CPU manager has another
        policy: a kubelet starts a new state file when its policy changes."""
        reading, last = self._reading, self._known
        if reading.whole is not None or (last and status.policy in ("", last.cpu_manager_policy)):
            return last
        configuration = inferred(reading, status.policy, status.reserved, strict=status.strict)
        return configuration or last

    def applied(
        self,
        node: NodeConfiguration,
        topology: Topology,
        status: CpuManagerStatus = UNKNOWN_CPU_MANAGER,
    ) -> NodeConfiguration:
        """Adds the settings and the kubelet's configuration to those of the Node object."""
        node = with_settings(node, self._settings)
        kubelet = self.in_force(status)
        if kubelet is None:
            return node
        problem = ""
        try:
            node = with_kubelet(node, kubelet, topology)
        except ConfigurationError as error:
            problem = str(error)
        self._sources.report(SourceName.KUBELET_RESERVATION, (problem,) if problem else ())
        return node

    def read(self) -> None:
        reading = read(self._settings, self._own_group)
        by_source = dict(reading.problems)
        refused = None
        if reading.whole is not None:
            try:
                check_combination(self._settings, reading.whole)
            except CombinationError as error:
                refused = error
        differing: tuple[str, ...] = ()
        if reading.whole is not None:
            cpu_policy = _cpu_policy(self._settings)
            differing = reading.whole.differing(cpu_policy, reading.memory_policy)
        by_source[SourceName.KUBELET_COMBINATION] = (
            *([str(refused)] if refused else ()),
            *(f"the kubelet's configuration differs: {each}" for each in differing),
        )
        for source, problems in by_source.items():
            self._sources.report(source, problems)
        news = (reading.whole, reading.argv, reading.content) != (
            self._reading.whole,
            self._reading.argv,
            self._reading.content,
        )
        if reading.whole is not None and refused is None:
            self._known = reading.whole
        self._reading, self._refused = reading, refused
        self._was_read.set()
        if news:
            self._changed()


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
    """What could be read of the kubelet's configuration."""

    whole: KubeletConfiguration | None = None
    """None when a part of it could not be read."""
    argv: tuple[str, ...] = (kubelet_process.KUBELET,)
    """The known part of the command line."""
    content: Mapping[str, Any] = {}
    """The known part of the files."""
    source: str = ""
    memory_policy: str = ""
    """The memory manager's policy, from its state; empty if unknown."""
    problems: Mapping[SourceName, tuple[str, ...]] = {}
    """By source, for every source that was read."""


class _Files:
    """Reads the kubelet's files below `root`."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.problems: list[str] = []
        """Why files could not be read."""
        self.names: list[str] = []

    def path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def is_mounted(self, path: str) -> bool:
        """Whether the agent's container has the host's top folder of this path; if not, the file
        may exist on the host."""
        top = path.lstrip("/").partition("/")[0]
        return os.path.isdir(self.path(top))

    def object(self, path: str, *, of_root: bool = True) -> dict[str, Any]:
        """The object in a YAML or JSON file; {} with a problem when it can't be read."""
        content = self._read(path, documents.read, of_root=of_root)
        if content is None:
            return {}
        if not isinstance(content, dict):
            self.problems.append(f"{path}: its content must be an object")
            return {}
        return content

    def text(self, path: str) -> str:
        """The content of a file; "" with a problem when it can't be read."""
        return os.fsdecode(self._read(path, documents.text) or b"")

    def entries(self, folder: str) -> list[tuple[str, bool]]:
        """The sorted names in a folder, and whether each is a folder."""
        try:
            with os.scandir(self.path(folder)) as entries:
                return sorted((each.name, each.is_dir(follow_symlinks=False)) for each in entries)
        except (OSError, ValueError) as error:
            self.problems.append(f"{folder}: {_reason(error)}")
            return []

    def _read(self, path: str, read: Callable[[str], Any], *, of_root: bool = True) -> Any:
        self.names.append(path)
        if not path.startswith("/"):
            self.problems.append(f"{path}: is relative to the kubelet's own folder")
            return None
        try:
            return read(self.path(path) if of_root else path)
        except (OSError, ValueError) as error:
            self.problems.append(f"{path}: {_reason(error)}")
            return None


def _reason(error: Exception) -> str:
    """The reason without the path below the root."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _token_file(settings: AgentSettings) -> str:
    """The token that the kubelet asks for at an address with TLS, "" outside a pod."""
    folder = auth.service_account(settings.kubeconfig)
    path = os.path.join(folder, "token")
    secure = settings.kubelet_configz.startswith("https:")
    return path if folder and secure and os.path.exists(path) else ""


def read(settings: AgentSettings, own_group: Callable[[], str | None]) -> Reading:
    """Reads the first available source: the kubelet's /configz, the declared file, or the command
    line and the files of its process.

    `own_group`: the root of the agent's cgroup namespace."""
    problems: dict[SourceName, tuple[str, ...]] = dict.fromkeys(_SOURCES, ())
    memory_policy = _memory_policy(settings, problems)
    if settings.kubelet_configz:
        try:
            answer = configuration.read_configz(
                settings.kubelet_configz,
                _token_file(settings),
                settings.kubelet_ca_file,
                settings.kubelet_dir,
            )
            if answer is not None:
                return Reading(answer, memory_policy=memory_policy, problems=problems)
        except ConfigurationError as error:
            problems[SourceName.KUBELET_CONFIGZ] = (str(error),)
    search = find(os.path.join(settings.root, "proc"), own_group())
    kubelet = search.of_folder(settings.root, settings.kubelet_dir)
    problems[SourceName.KUBELET_PROCESS] = () if kubelet else _unclear(search)
    files = _Files(settings.root)
    reading = _of_files(settings, kubelet, files)
    unread = tuple(
        f"{kubelet.title}: {problem}" if kubelet else problem for problem in files.problems
    )
    whole = None
    if not unread:
        try:
            whole = configuration.of_command_line(reading.argv, reading.content, reading.source)
        except ConfigurationError as error:
            unread = (str(error),)
    if kubelet is None:
        whole = None  # the kubelet's flags, which are not known, override the declared file
    problems[SourceName.KUBELET_CONFIG] = unread
    return msgspec.structs.replace(
        reading, whole=whole, memory_policy=memory_policy, problems=problems
    )


def _unclear(processes: FoundKubelets) -> tuple[str, ...]:
    """Why it is not known which process is the node's kubelet."""
    several = ", ".join(each.title for each in processes.kubelets)
    if len(processes.kubelets) < 2:
        return processes.doubts
    return (
        *processes.doubts,
        f"several run, and not exactly one of them uses the agent's kubelet-dir: {several}",
    )


def _of_files(settings: AgentSettings, kubelet: KubeletProcess | None, files: _Files) -> Reading:
    argv = _arguments(kubelet, files) if kubelet else [kubelet_process.KUBELET]
    named = flags(argv)
    content = {}
    if settings.kubelet_config:
        content = files.object(settings.kubelet_config, of_root=False)
    elif path := named.get("config"):
        content = files.object(path)
    for path in _drop_ins(kubelet, named, files) if kubelet else ():
        content = merged(content, files.object(path))
    source = ", ".join((*([kubelet.title] if kubelet else []), *files.names))
    return Reading(argv=tuple(argv), content=content, source=source)


def _arguments(kubelet: KubeletProcess, files: _Files) -> list[str]:
    """The kubelet's command line, with the flags that its program reads from files."""
    argv = kubelet_process.own_arguments(kubelet.argv)
    named = flags(kubelet.argv)
    if kubelet_process.hides_flags(kubelet.argv):
        files.problems.append("it hides its flags: --kubelet-configz reads them from the kubelet")
    if kubelet.program == kubelet_process.KUBELITE:
        if path := named.get(kubelet_process.KUBELITE_ARGS_FLAG):
            argv[1:1] = kubelet_process.arguments_of_file(path, files.text(path))
    elif kubelet.program == kubelet_process.K3S and len(argv) == 1:
        # A kubelet-arg on the command line replaces those in the files.
        path = named.get("config") or named.get("c") or kubelet_process.K3S_CONFIG
        argv += _k3s_arguments(path, files)
    return argv


def _k3s_arguments(path: str, files: _Files) -> list[str]:
    if not files.is_mounted(path):
        files.problems.append(f"{path}: its folder is not mounted in the agent's container")
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
        return kubelet_process.arguments_of_k3s([files.object(each) for each in paths], path)
    except ConfigurationError as error:
        files.problems.append(str(error))
        return []


def _drop_ins(kubelet: KubeletProcess, named: Mapping[str, str], files: _Files) -> Iterable[str]:
    """The files that the kubelet merges into its configuration file, in its order."""
    folder = named.get("config-dir", "")
    if not folder and kubelet.program == kubelet_process.K3S:
        data_dir = flags(kubelet.argv).get("data-dir") or _K3S_DATA_DIR
        own = os.path.join(data_dir, _K3S_DROP_INS)
        folder = own if os.path.isdir(files.path(own)) else ""
    return _below(folder, files) if folder else ()


def _below(folder: str, files: _Files) -> list[str]:
    """The drop-ins in a folder and its subfolders, in the order of filepath.WalkDir."""
    paths: list[str] = []
    for name, is_folder in files.entries(folder):
        path = os.path.join(folder, name)
        if is_folder:
            paths += _below(path, files)
        elif name.endswith(_DROP_IN):
            paths.append(path)
    return paths


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
    """The known part of the configuration, None when nothing is known. Flags override the kubelet's
    state and its PodResources, and these override the files, some of which could not be read.

    `cpu_policy`: the policy in the state, "" if unknown.
    `reserved`: the CPUs that PodResources shows as reserved, empty if unknown.
    `strict`: no pod runs on them."""
    parts: dict[str, Any] = {}
    if cpu_policy:
        parts["cpuManagerPolicy"] = cpu_policy
    if reading.memory_policy:
        parts["memoryManagerPolicy"] = reading.memory_policy
    if reserved:
        parts["reservedSystemCPUs"] = str(reserved)
    if strict:
        parts["cpuManagerPolicyOptions"] = {STRICT_CPU_RESERVATION: "true"}
    if not parts and not reading.content and len(reading.argv) == 1:
        return None
    source = f"{reading.source or 'the kubelet'} (known in part)"
    try:
        return configuration.of_command_line(reading.argv, merged(reading.content, parts), source)
    except ConfigurationError:  # reported as a problem of its source
        return configuration.of_object(parts, source)


def _cpu_policy(settings: AgentSettings) -> str:
    try:
        state = cpu_manager_state.read(f"{settings.kubelet_dir}/{cpu_manager_state.FILE_NAME}")
    except StateFileError:  # reported by the view of the state
        return ""
    return "" if state == CpuManagerState() else state.policy


def _memory_policy(settings: AgentSettings, problems: dict[SourceName, tuple[str, ...]]) -> str:
    path = os.path.join(settings.kubelet_dir, memory_manager_state.FILE_NAME)
    try:
        state = memory_manager_state.read(path)
    except StateFileError as error:
        problems[SourceName.MEMORY_MANAGER_STATE] = (str(error),)
        return ""
    return "" if state == memory_manager_state.MemoryManagerState() else state.policy
