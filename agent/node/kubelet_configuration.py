"""The configuration of this node's kubelet, and whether it is compatible with the agent's
settings."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from agent.host.daemon import Periodic
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.kubelet.cpu_manager_state import CpuManagerState
from agent.model.cpuset import EMPTY, CpuSet
from agent.model.node_annotations import NodeConfiguration
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import SettingsError
from agent.model.topology import Topology
from agent.node import kubelet_config_sources, node_object
from agent.node.kubelet_config_sources import Reading
from agent.node.sources import SourceName, Sources

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 60.0
"""A kubelet may start after the agent, or restart with another configuration."""
LEAST_SECONDS: Final = 1.0
"""Between two reads: a kubelet that gives CPUs writes its state often."""
FIRST_SECONDS: Final = 15.0
"""The agent's start waits this long for the first read: the kubelet may hang."""


class CombinationError(SettingsError):
    """The kubelet's configuration and the settings contradict each other. The message names the
    remedy."""


class CpuManagerStatus(msgspec.Struct, frozen=True):
    """Other sources: `state` of the CPU manager, None without one, and the CPUs that it reserves
    according to PodResources."""

    state: CpuManagerState | None = None
    reserved: CpuSet = EMPTY

    @property
    def policy(self) -> str:
        """The CPU manager's policy, "" when it is unknown."""
        return self.state.policy if self.state else ""

    @property
    def strict(self) -> bool:
        """Whether no pod runs on the reserved CPUs: otherwise these are among the shared ones
        (cpumanager/policy_static.go, validateState)."""
        if self.state is None or not self.state.static:
            return False
        return bool(self.reserved) and not self.reserved & self.state.default


UNKNOWN_CPU_MANAGER: Final = CpuManagerStatus()


class KubeletConfigurationView:
    """Reads the kubelet's configuration periodically, on a thread of its own. While it can't be
    read as a whole, the last known one stays in force; without that one it is inferred from other
    sources."""

    def __init__(
        self,
        settings: AgentSettings,
        sources: Sources | None = None,
        own_group: Callable[[], str | None] = lambda: "/",
        changed: Callable[[], None] = lambda: None,
        last: KubeletConfiguration | None = None,
    ) -> None:
        """`own_group`: the root of the agent's cgroup namespace; `changed` is called on any thread
        after a change; `last`: the configuration that the last agent knew."""
        self._settings = settings
        self._sources = sources or Sources()
        self._own_group = own_group
        self._changed = changed
        self._reading = Reading()
        self._known = last
        self._refused: CombinationError | None = None
        self._was_read = threading.Event()
        self._reader = Periodic("kubelet-configuration", PERIOD_SECONDS, self.read, LEAST_SECONDS)

    @property
    def known(self) -> KubeletConfiguration | None:
        """The last configuration that could be read as a whole."""
        return self._known

    def start(self) -> None:
        """Reads it now, every PERIOD_SECONDS, and soon after `ask`. Returns after the first read or
        FIRST_SECONDS. Raises CombinationError when it contradicts the settings."""
        self._reader.start()
        self._was_read.wait(FIRST_SECONDS)
        if self._refused is not None:
            self.close()
            raise self._refused
        log.info("kubelet: %s", self._reading.source or "no configuration was read")

    def ask(self) -> None:
        """Reads it soon: the kubelet may have restarted."""
        self._reader.hurry()

    def close(self) -> None:
        """Ends the thread without waiting for the kubelet."""
        self._reader.stop(0.0)

    @property
    def gives_no_cpus(self) -> bool:
        """Whether the kubelet's configuration, read as a whole, has no static CPU manager
        policy."""
        whole = self._reading.whole
        return whole is not None and not whole.static

    def applied(
        self,
        node: NodeConfiguration,
        topology: Topology,
        says: CpuManagerStatus = UNKNOWN_CPU_MANAGER,
    ) -> NodeConfiguration:
        """Adds the settings and the kubelet's configuration to those of the Node object."""
        node = ruled(node, self._settings)
        kubelet = self._in_force(says)
        if kubelet is None:
            return node
        trouble = ""
        try:
            node = node_object.with_kubelet(node, kubelet, topology)
        except ConfigurationError as error:
            trouble = str(error)
        self._sources.report(SourceName.KUBELET_RESERVATION, (trouble,) if trouble else ())
        return node

    def read(self) -> None:
        """Reads the configuration once."""
        reading = kubelet_config_sources.read(self._settings, self._own_group)
        troubles = dict(reading.troubles)
        refused = None
        if reading.whole is not None:
            try:
                check(self._settings, reading.whole)
            except CombinationError as error:
                refused = error
        troubles[SourceName.KUBELET_COMBINATION] = (str(refused),) if refused else ()
        for source, told in troubles.items():
            self._sources.report(source, told)
        news = (reading.whole, reading.words, reading.content) != (
            self._reading.whole,
            self._reading.words,
            self._reading.content,
        )
        if reading.whole is not None and refused is None:
            self._known = reading.whole
        self._reading, self._refused = reading, refused
        self._was_read.set()
        if news:
            self._changed()

    def _in_force(self, says: CpuManagerStatus) -> KubeletConfiguration | None:
        """The last known configuration, unless the state of the kubelet's CPU manager has another
        policy: a kubelet starts a new state when its policy changes."""
        reading, known = self._reading, self._known
        if reading.whole is not None or (known and says.policy in ("", known.cpu_manager_policy)):
            return known
        found = kubelet_config_sources.inferred(
            reading, says.policy, says.reserved, strict=says.strict
        )
        return found or known


def check(settings: AgentSettings, kubelet: KubeletConfiguration | None) -> None:
    """Raises CombinationError."""
    if kubelet is None:
        return
    policy, declared = kubelet.cpu_manager_policy, settings.kubelet_cpu_manager
    if declared != "detect" and policy != declared:
        raise CombinationError(
            f"kubelet-cpu-manager is {declared}, and the kubelet's cpuManagerPolicy is {policy} "
            f"({kubelet.source}): declare what it is, or reconfigure it (drain the node, stop it, "
            "remove its cpu_manager_state, start it)"
        )
    strict = kubelet.cpu_manager_options.get(node_object.STRICT_CPU_RESERVATION) == "true"
    if settings.be_on_reserved and kubelet.static and strict:
        raise CombinationError(
            "be-on-reserved is on, and the kubelet keeps its reserved CPUs from every pod "
            f"({node_object.STRICT_CPU_RESERVATION} in {kubelet.source}): switch one of them off"
        )
    if settings.be_on_reserved and not (kubelet.reserved_cpus or kubelet.reserved_milli):
        raise CombinationError(
            f"be-on-reserved is on, and the kubelet reserves no CPU ({kubelet.source}): set its "
            "reservedSystemCPUs, or switch be-on-reserved off"
        )
    if settings.bind_memory and kubelet.memory_manager_policy == "Static":
        raise CombinationError(
            "bind-memory is on, and the kubelet's memoryManagerPolicy is Static "
            f"({kubelet.source}): both would write cpuset.mems; switch one of them off"
        )


def ruled(node: NodeConfiguration, settings: AgentSettings) -> NodeConfiguration:
    """Adds the agent's settings to the node's configuration."""
    return msgspec.structs.replace(
        node,
        owners_on_reserved=settings.owners_on_reserved,
        be_on_reserved=settings.be_on_reserved,
        bind_memory=node.bind_memory or settings.bind_memory,
    )
