"""The snapshot file: written when its content changes, or when a frontend requests a fresh one."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

import msgspec

from agent.allocate.pools import Decision
from agent.allocate.visibility.pod_devices import DeviceVisibility, Holders, holders
from agent.hooks.agent_client import read_snapshot
from agent.host import files
from agent.model import snapshot as snapshots
from agent.model.cpu.cpuset import CpuSet
from agent.model.pod.pods import ContainerState, Pod
from agent.model.snapshot import (
    NOTHING,
    CpuPolicy,
    LocalOwner,
    Owner,
    Patterns,
    PodWanted,
    Snapshot,
    Wanted,
)
from agent.node.sources import SourceName, Sources

_REVOKED: Final = "the agent is about to give its CPUs to others"


class Publisher:
    """Writes snapshots. Their generations continue across restarts, so that each occurs once in a
    boot unless the file was lost. A removed file is written again.

    Owners of the last snapshot are kept also from an earlier agent of this boot: frontends may have
    acted on it."""

    def __init__(self, path: str, boot_id: str, sources: Sources | None = None) -> None:
        self._path = path
        self._sources = sources or Sources()
        self._boot_id = boot_id
        self._last = self._stored()
        devices = self._last.devices if self._last and self._last.boot_id == boot_id else None
        self.device_holders: Holders = {
            each.uuid: each.holders for each in (devices.held if devices else ()) if each.holders
        }
        """Also those of an earlier agent."""

    @property
    def last(self) -> Snapshot | None:
        """The last snapshot of this boot."""
        return self._last if self._last and self._last.boot_id == self._boot_id else None

    @property
    def generation(self) -> int:
        return self._last.generation if self._last else 0

    @property
    def scheduled_owners(self) -> dict[str, CpuSet]:
        """By pod uid, the CPUs that a scheduler chose, also offline ones."""
        local = {uid for uid, _ in self.local_owners}
        return {
            owner.uid: owner.claimed
            for owner in self._owners()
            if owner.uid not in local and not owner.kubelet and not owner.claims
        }

    @property
    def all_owners(self) -> dict[str, CpuSet]:
        """By pod uid, the CPUs of all owners of the last snapshot: also those that the kubelet or
        the node-local policy chose."""
        return {owner.uid: owner.claimed for owner in self._owners()}

    @property
    def local_owners(self) -> dict[tuple[str, str], LocalOwner]:
        """By pod uid and container name, the decisions of the node-local policy."""
        return {
            (each.uid, each.name): each for each in (self.last.local_owners if self.last else ())
        }

    def _owners(self) -> tuple[Owner, ...]:
        return self.last.owners if self.last else ()

    def publish(
        self,
        decision: Decision,
        pods: tuple[Pod, ...],
        blocked: dict[str, str],
        kubelet_static: bool,
        listed_at: int,
        *,
        fresh: bool,
        excluded: Patterns = (),
        excluded_ids: Collection[str] = (),
        memory_stays: bool = False,
        cpu_policy: CpuPolicy = "none",
        visibility: DeviceVisibility | None = None,
        announced: Collection[str] = (),
        places_devices: bool = False,
        unplaced: Collection[str] = (),
        gives_claims: bool = False,
    ) -> None:
        """Writes the snapshot if something changed, or if `fresh` is set.

        `blocked`: by pod uid, why its containers must not be created yet.
        `excluded_ids`: ids of containers that a pattern of `excluded` names.
        `memory_stays`: no update changes the memory nodes of a container that runs.
        `visibility`: None for no decisions about devices.
        `announced`: uids of pods whose sandbox may be made.

        Raises OSError."""
        wanted = {
            uid: _blocked(pod_wanted, blocked[uid]) if uid in blocked else pod_wanted
            for uid, pod_wanted in decision.pods.items()
        }
        by_container = _by_container(pods, wanted, memory_stays)
        for uid, shown in visibility.pods.items() if visibility else ():
            if uid in wanted:
                wanted[uid] = wanted[uid].with_visible(shown.each, shown.containers)
        new = Snapshot(
            generation=self.generation + 1,
            listed_at=listed_at,
            boot_id=self._boot_id,
            kubelet_static=kubelet_static,
            pools=decision.pools,
            owners=decision.owners,
            pods=wanted,
            containers={
                **by_container,
                **dict.fromkeys(excluded_ids, NOTHING),
            },
            excluded=excluded,
            cpu_policy=cpu_policy,
            local_owners=decision.local_owners,
            announced=tuple(sorted(announced)),
            devices=visibility.node if visibility else None,
            places_devices=places_devices,
            unplaced=tuple(sorted(unplaced)),
            gives_claims=gives_claims,
        )
        self.device_holders = holders(visibility, self.device_holders, {pod.uid for pod in pods})
        unchanged = self._last is not None and _same(self._last, new)
        if unchanged and not fresh and os.path.exists(self._path):
            return
        files.replace(self._path, snapshots.encode(new), durable=False, mode=0o644)
        self._last = new

    def announce(self, uids: Collection[str]) -> None:
        """Publishes before the next decision that the sandboxes of these pods may be made. Raises
        OSError."""
        if (last := self.last) is None or not set(uids) - set(last.announced):
            return
        announced = tuple(sorted({*last.announced, *uids}))
        new = msgspec.structs.replace(last, generation=last.generation + 1, announced=announced)
        files.replace(self._path, snapshots.encode(new), durable=False, mode=0o644)
        self._last = new

    def revoke(self, owners: Collection[Owner]) -> bool:
        """Blocks, before the next decision, the containers of pods that are not among the `owners`
        any more. Returns whether the last snapshot did not block them. Raises OSError."""
        if (last := self.last) is None:
            return False
        dropped = {owner.uid for owner in last.owners} - {owner.uid for owner in owners}
        blocked = {uid: _blocked(last.pods[uid], _REVOKED) for uid in dropped if uid in last.pods}
        if all(last.pods[uid] == of_pod for uid, of_pod in blocked.items()):
            return False
        pods = {**last.pods, **blocked}
        new = msgspec.structs.replace(last, generation=last.generation + 1, pods=pods)
        files.replace(self._path, snapshots.encode(new), durable=False, mode=0o644)
        self._last = new
        return True

    def _stored(self) -> Snapshot | None:
        try:
            return read_snapshot(self._path)
        except FileNotFoundError:
            return None
        except (OSError, snapshots.SnapshotError) as error:
            problem = f"the last snapshot can't be read, generations start again: {error}"
            self._sources.report(SourceName.SNAPSHOT, (problem,))
            return None


def _blocked(wanted: PodWanted, reason: str) -> PodWanted:
    """Blocks the containers of a pod that own CPUs."""

    def block(each: Wanted) -> Wanted:
        return msgspec.structs.replace(each, blocked=reason) if each.exclusive else each

    containers = {name: block(each) for name, each in wanted.containers.items()}
    return msgspec.structs.replace(wanted, each=block(wanted.each), containers=containers)


def _by_container(
    pods: tuple[Pod, ...], wanted: dict[str, PodWanted], memory_stays: bool
) -> dict[str, Wanted]:
    by_id = {}
    for pod in pods:
        for each in pod.containers:
            of_container = wanted[pod.uid].of(each.name)
            stays = memory_stays and each.state is ContainerState.RUNNING
            by_id[each.id] = of_container.without("mems") if stays else of_container
    return by_id


def _same(one: Snapshot, other: Snapshot) -> bool:
    return one == msgspec.structs.replace(other, generation=one.generation, listed_at=one.listed_at)
