"""The kubelet that runs on this node: how it is configured, and whether both of us can be right."""

from __future__ import annotations

import itertools
import logging
import os
import time
from typing import Final

import msgspec

from agent.host import processes
from agent.kube import documents
from agent.kube.documents import DocumentError
from agent.kubelet import configuration, configz
from agent.kubelet.configuration import ConfigurationError, KubeletConfiguration
from agent.model.resources import NodeConfiguration
from agent.model.settings import Settings, SettingsError
from agent.model.topology import Topology
from agent.node import configured

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS: Final = 60.0
"""A kubelet may start after us, or again with another configuration."""
_NAMES: Final = ("kubelet", "k3s", "kubelite")


class CombinationError(SettingsError):
    """Kubelet and settings that can't both be right; the message says how to get out of it."""


class Beside:
    """Detects the kubelet now and then; what goes wrong later leaves the last word in force."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigurationError, CombinationError."""
        self._settings = settings
        self._kubelet = detected(settings)
        check(settings, self._kubelet)
        self._looked = time.monotonic()
        self._said = ""
        source = self._kubelet.source if self._kubelet else "none runs"
        log.info("kubelet: %s", source)

    def applied(self, node: NodeConfiguration, topology: Topology) -> NodeConfiguration:
        """What is configured for the node, with the settings and the kubelet's words."""
        if time.monotonic() - self._looked >= LOOK_AGAIN_SECONDS:
            self._looked = time.monotonic()
            self._look_again()
        node = ruled(node, self._settings)
        if self._kubelet is None:
            return node
        try:
            return configured.beside(node, self._kubelet, topology)
        except ConfigurationError as error:
            self._say(str(error))
            return node

    def _look_again(self) -> None:
        try:
            kubelet = detected(self._settings)
            check(self._settings, kubelet)
        except (ConfigurationError, CombinationError) as error:
            self._say(f"keeping what was known of the kubelet: {error}")
            return
        # One that is away for a moment comes back as it was.
        self._kubelet = kubelet or self._kubelet
        self._said = ""

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            log.error("%s", trouble)
        self._said = trouble


def detected(settings: Settings) -> KubeletConfiguration | None:
    """From its own answer where an address for it is set, else from its command line and file.
    None where no kubelet runs. Raises ConfigurationError that names source and field."""
    if settings.kubelet_configz:
        token, ca = settings.kubelet_token_file, settings.kubelet_ca_file
        return configz.read(settings.kubelet_configz, token, ca)
    return of_processes(settings.root)


def of_processes(root: str) -> KubeletConfiguration | None:
    """`root` is where the host's files and /proc are; of several kubelets (a test cluster's) the
    first counts. Raises ConfigurationError that names process, file and field."""
    for name in _NAMES:
        for pid, words in processes.named(os.path.join(root, "proc"), name):
            words = _own_words(words)
            path = configuration.flags(words).get("config", "")
            source = f"{name} {pid}"
            content = None
            if path:
                source = f"{source}, {path}"
                try:
                    content = documents.read(os.path.join(root, path.lstrip("/")))
                except (OSError, DocumentError) as error:
                    raise ConfigurationError(f"{source}: {error}") from error
            return configuration.of_command_line(words, content, source)
    return None


def _own_words(words: list[str]) -> list[str]:
    """Of a program that holds a kubelet: those that it hands on (`--kubelet-arg NAME=VALUE`)."""
    if os.path.basename(words[0]) == _NAMES[0]:
        return words
    handed = []
    for before, word in itertools.pairwise(words):
        if word.startswith("--kubelet-arg="):
            handed.append(word.partition("=")[2])
        elif before == "--kubelet-arg":
            handed.append(word)
    return [words[0], *(f"--{each.lstrip('-')}" for each in handed)]


def check(settings: Settings, kubelet: KubeletConfiguration | None) -> None:
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
    strict = kubelet.cpu_manager_options.get(configured.STRICT_CPU_RESERVATION) == "true"
    if settings.be_on_reserved and kubelet.static and strict:
        raise CombinationError(
            "be-on-reserved is on, and the kubelet keeps its reserved CPUs from every pod "
            f"({configured.STRICT_CPU_RESERVATION} in {kubelet.source}): switch one of them off"
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


def ruled(node: NodeConfiguration, settings: Settings) -> NodeConfiguration:
    """What is configured for the node, with the settings of the agent."""
    return msgspec.structs.replace(
        node,
        owners_on_reserved=settings.owners_on_reserved,
        be_on_reserved=settings.be_on_reserved,
        bind_memory=node.bind_memory or settings.bind_memory,
    )
