"""What pods hold by the kubelet's own word, for the report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import msgspec

from agent.allocate.foreign.podresources import grants
from agent.allocate.shares import kubelet_may_own
from agent.model.availability import Held
from agent.model.cpuset import EMPTY
from agent.model.devices import Portion
from agent.model.holding import Grant
from agent.model.podholdings import by_uid, device_portions, holdings, kept, reserved
from agent.model.podresources import PodName
from agent.model.pods import Pod
from agent.model.topology import Topology
from agent.node.podresources import Told

log = logging.getLogger(__name__)


class KubeletWord(msgspec.Struct, frozen=True):
    """`held` by pod uid; `portions` of devices that plugins gave to the kubelet;
    `reserved_memory_bytes` by NUMA node; `grants`: devices by plugin or driver."""

    held: Mapping[str, Held] = {}
    portions: tuple[Portion, ...] = ()
    reserved_memory_bytes: Mapping[int, int] = {}
    grants: tuple[Grant, ...] = ()


class View(Protocol):
    """Who asks the kubelet."""

    def told(self) -> Told | None: ...


class KubeletSays:
    """Remembers what the kubelet forgets while the runtime still runs it."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._held: dict[PodName, Held] = {}
        self._said: frozenset[str] = frozenset()

    def now(self, topology: Topology, pods: tuple[Pod, ...]) -> KubeletWord:
        """Of these pods; nothing without an answer of a kubelet."""
        told = self._view.told()
        if told is None:
            return KubeletWord()
        names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
        there = frozenset(names.values())
        over = {pod.key for pod in told.pods} - there
        found = holdings(told.pods, topology, told.allocatable, over)
        self._say(found.problems)
        self._held = kept(self._held, found.pods, there)
        shares = {pod.uid for pod in pods if not kubelet_may_own(pod)}
        held = {
            uid: msgspec.structs.replace(each, cpus=EMPTY) if uid in shares else each
            for uid, each in by_uid(self._held, names).items()
        }
        given = grants(told.pods, _only_one(names))
        if told.allocatable is None:
            return KubeletWord(held, grants=given)
        return KubeletWord(
            held,
            device_portions(told.pods, told.allocatable, over),
            reserved(topology, told.allocatable).memory_bytes,
            given,
        )

    def _say(self, problems: tuple[str, ...]) -> None:
        for problem in sorted(frozenset(problems) - self._said):
            log.error("the kubelet says what can't be: %s", problem)
        self._said = frozenset(problems)


def _only_one(names: Mapping[str, PodName]) -> dict[PodName, str]:
    """Uids by name, of names that one pod alone has: the API does not tell whose word it is."""
    uids: dict[PodName, list[str]] = {}
    for uid, name in names.items():
        uids.setdefault(name, []).append(uid)
    return {name: of_name[0] for name, of_name in uids.items() if len(of_name) == 1}
