"""The watches of the API server that update the cluster's state, and their freshness: how long each
has been out of touch with the API server, and whether it has caught up after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from agent.host.daemon import Periodic
from agent.kube import objects, wire
from agent.kube.kind_watch import KindWatch
from agent.kube.listwatch import ListWatch
from agent.kube.objects import Change, Changed, Discovery
from agent.kube.schedule import WatchPace
from agent.kube.transport import Transport
from agent.model import rebind_resource
from agent.model.pod.annotations import DEVICE_LOCALITY
from agent.model.rebind_resource import RebindRequest
from agent.scheduler.state import koordinator_reservations, records
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.records import AgentSelector, PodRecord

CHECK_SECONDS: Final = 10.0
"""Interval of the check for kinds that were added or removed."""
RESYNC_SECONDS: Final = 2.0
"""A watch that has not reached the version of the server within this time lists all objects."""
_STEP_SECONDS: Final = 0.02


class Watches:
    """All watches of a scheduler, each on a thread of its own."""

    def __init__(
        self,
        transport: Transport,
        cluster: SchedulerCache,
        agents: AgentSelector | None = None,
        *,
        stale_seconds: float,
        pods_changed: Sequence[Changed[PodRecord]] = (),
        kinds_of_pods: bool = False,
        scheduler: str = "",
        rebinds_changed: Changed[RebindRequest] | None = None,
        pace: WatchPace | None = None,
        check_seconds: float | None = None,
    ) -> None:
        """`stale_seconds` is the time that each watch may be out of touch with the API server.
        `pods_changed` are called after the cluster was updated; `kinds_of_pods`: the kinds of pods
        are read for them. `scheduler`: the name of this one in pods. Without `rebinds_changed`
        RebindResources are not watched."""
        pace = pace or watch_pace(stale_seconds)
        self._stale_seconds = stale_seconds
        discovery = Discovery(transport)
        pods, nodes = (objects.path("", "v1", each.plural) for each in (objects.POD, objects.NODE))
        read_pod = records.pods(agents or AgentSelector(), kinds=kinds_of_pods, scheduler=scheduler)
        self._transport = transport

        def changed(changes: Sequence[Change[PodRecord]]) -> None:
            cluster.pods_changed(changes)
            for each in pods_changed:
                each(changes)

        self._pods = ListWatch(transport, pods, {}, read_pod, changed, pace=pace)
        self._nodes = ListWatch(
            transport, nodes, {}, records.node, cluster.nodes_changed, pace=pace
        )
        self._namespaces = ListWatch(
            transport,
            objects.path("", "v1", objects.NAMESPACE.plural),
            {"labelSelector": DEVICE_LOCALITY},
            records.namespace,
            cluster.namespaces_changed,
            pace=pace,
        )
        self._kinds: tuple[KindWatch[Any], ...] = (
            KindWatch(
                transport,
                discovery,
                objects.TOPOLOGY,
                records.topology,
                cluster.topologies_changed,
                pace,
            ),
            KindWatch(
                transport,
                discovery,
                objects.DEVICE,
                records.devices,
                cluster.devices_changed,
                pace,
            ),
            KindWatch(
                transport,
                discovery,
                objects.RESERVATION,
                koordinator_reservations.reservation,
                cluster.koordinator_reservations_changed,
                pace,
            ),
        )
        if rebinds_changed is not None:
            read_rebind = rebind_resource.decode
            rebinds = KindWatch(
                transport, discovery, objects.REBIND, read_rebind, rebinds_changed, pace
            )
            self._kinds = (*self._kinds, rebinds)
        self._core: dict[str, ListWatch[Any]] = {
            objects.POD.plural: self._pods,
            objects.NODE.plural: self._nodes,
            objects.NAMESPACE.plural: self._namespaces,
        }
        self._all: Mapping[str, ListWatch[Any] | KindWatch[Any]] = {
            **self._core,
            **{each.resource: each for each in self._kinds},
        }
        check_seconds = check_seconds or min(CHECK_SECONDS, stale_seconds / 3)
        self._checking = Periodic("kinds", check_seconds, self._check_kinds)

    @property
    def synced(self) -> bool:
        """Whether the cluster has all objects that existed at the start."""
        return all(each.synced for each in self._all.values())

    @property
    def problems(self) -> tuple[str, ...]:
        """The current errors of the watches."""
        return tuple(each.problem for each in self._all.values() if each.problem is not None)

    @property
    def ages_seconds(self) -> dict[str, float]:
        """The time since each watch was last in touch with the API server, by resource."""
        return {resource: each.age_seconds for resource, each in self._all.items()}

    def stale(self) -> str | None:
        """Names the watch that has been out of touch for too long; None if there is none. The
        cluster may have changed since."""
        return stale(self._all, self._stale_seconds)

    def behind(self) -> str | None:
        """Names the watch that failed and has not caught up since; None if there is none. A change
        that was not reported yet may forbid a bind."""
        for resource, each in self._list_watches().items():
            if not each.caught_up:
                return f"the watch of {resource} failed and has not caught up yet"
        return None

    def mark_behind(self) -> None:
        """Makes all watches catch up, since another scheduler may have bound pods."""
        for each in self._list_watches().values():
            each.mark_behind()

    def start(self) -> None:
        self._transport.reachability.listen(self._checking.hurry)
        self._pods.start()
        self._nodes.start()
        self._namespaces.start()
        self._checking.start()

    def stop(self) -> None:
        self._transport.reachability.ignore(self._checking.hurry)
        self._checking.stop()
        for each in self._all.values():
            each.stop()

    def catch_up(self, wait: Callable[[float], bool]) -> bool:
        """Returns True when all watches have caught up; False if `wait`, which pauses for the given
        number of seconds, returns True to stop. Raises StoreError."""
        return wait_until_caught_up(self._transport, self._list_watches, wait)

    def _list_watches(self) -> dict[str, ListWatch[Any]]:
        """By resource, without kinds that do not exist."""
        return self._core | {
            each.resource: watch for each in self._kinds if (watch := each.watch) is not None
        }

    def _check_kinds(self) -> None:
        for each in self._kinds:
            each.check()


def watch_pace(stale_seconds: float) -> WatchPace:
    """A scheduler renews each watch three times in `stale_seconds`: the answer shows that the
    server still serves a watch without events. Agents request watches less often, since there are
    many of them."""
    return WatchPace(
        watch_seconds=stale_seconds / 3, grace_seconds=5.0, cap_seconds=5.0, return_seconds=0.5
    )


class WatchAge(Protocol):
    """The part of a watch that `stale` reads."""

    @property
    def age_seconds(self) -> float: ...

    @property
    def problem(self) -> str | None: ...


def stale(watches: Mapping[str, WatchAge], stale_seconds: float) -> str | None:
    """Names the watch that has been out of touch longest, by resource, with its error; None if no
    watch is too old."""
    resource, oldest = max(watches.items(), key=lambda each: each[1].age_seconds)
    age_seconds = oldest.age_seconds
    if age_seconds <= stale_seconds:
        return None
    text = f"the watch of {resource} has been out of touch for {age_seconds:.0f} s"
    return f"{text}: {oldest.problem}" if oldest.problem else text


class CatchUp:
    """Waits until watches have caught up. It reads the current resourceVersion of the API server,
    which counts the changes of all objects: a watch that has reached it has reported all earlier
    changes. A watch of objects that do not change never reaches it, so it lists all objects again
    after RESYNC_SECONDS."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._proofs: dict[ListWatch[Any], _Proof] = {}

    def step(self, watch: ListWatch[Any], passed_seconds: float) -> None:
        """One step for a watch that has not caught up. `passed_seconds` is the time since the last
        step. Raises StoreError."""
        proof = self._proofs.get(watch)
        if proof is None or proof.breaks != watch.breaks:
            if watch.problem is not None or not watch.synced:
                return  # it must reach the server first
            breaks, reached = watch.breaks, watch.version
            proof = self._proofs[watch] = _Proof(breaks, self._version(watch.path))
            if reached is not None and _behind(proof.version, reached):
                # The server was restored from a backup.
                proof.listed = True
                watch.resync()
        reached = watch.version
        if not proof.listed and reached is not None and wire.not_newer(proof.version, reached):
            watch.mark_caught_up(proof.breaks)
        elif not proof.listed and proof.waited_seconds >= RESYNC_SECONDS:
            proof.listed = True
            watch.resync()
        proof.waited_seconds += passed_seconds

    def _version(self, path: str) -> str:
        """The current version in etcd, not in the server's cache."""
        page = wire.page(f"GET {path}", self._transport.get(path, {"limit": 1}))
        return page.metadata.resource_version


class _Proof(msgspec.Struct):
    """A watch with the same `breaks` has caught up when it reaches `version`. `listed`: it lists
    all objects again instead."""

    breaks: int
    version: str
    waited_seconds: float = 0.0
    listed: bool = False


def wait_until_caught_up(
    transport: Transport,
    watches: Callable[[], Mapping[str, ListWatch[Any]]],
    wait: Callable[[float], bool],
) -> bool:
    """Returns False if `wait`, which pauses for the given number of seconds, returns True to stop.
    Raises StoreError."""
    catch_up = CatchUp(transport)
    while behind := [each for each in watches().values() if not each.caught_up]:
        for each in behind:
            catch_up.step(each, _STEP_SECONDS)
        if wait(_STEP_SECONDS):
            return False
    return True


def _behind(version: str, reached: str) -> bool:
    return version != reached and wire.not_newer(version, reached)
