"""What each container of the node sees of its devices, for the snapshot."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from agent.allocate.visibility.held import held
from agent.allocate.visibility.isolation import NO_ISOLATION, Isolation
from agent.allocate.visibility.shown import DevicePod, Holders, PodShown, shown
from agent.allocate.visibility.wishes import container_wishes
from agent.model.apipods import ApiPod
from agent.model.devicefiles import DeviceFiles
from agent.model.holding import Form, Holding, Source
from agent.model.pods import Pod
from agent.model.settings import Settings
from agent.model.visible import NodeDevices, Unasked

_PARTS = frozenset({Form.INSTANCE, Form.FUNCTION})
_TAKES_NOTHING = frozenset({Form.OPEN, Form.CPUS})


class SightPolicy(msgspec.Struct, frozen=True):
    """What people set; see NodeDevices and Isolation."""

    unasked: Unasked = "hide"
    cdi_kind: str = ""
    isolation: Isolation = NO_ISOLATION


def policy(settings: Settings) -> SightPolicy:
    """What the settings say."""
    locks = os.path.join(settings.state_dir, "vgpulock")
    isolation = Isolation(settings.hami_core_library, locks)
    return SightPolicy(settings.unasked_gpus, settings.gpu_cdi_kind, isolation)


def prepare(by: SightPolicy) -> None:
    """Makes what containers are to mount: a runtime makes no folder for NRI, and for others one in
    which a user other than root can make no lock. Raises OSError."""
    if by.isolation.library:
        os.makedirs(by.isolation.lock_folder, exist_ok=True)
        os.chmod(by.isolation.lock_folder, 0o1777)


class Sight(msgspec.Struct, frozen=True):
    """`pods` by uid, those alone that schedulers gave devices to."""

    pods: Mapping[str, PodShown]
    node: NodeDevices


UNDECIDED: Final = Sight({}, NodeDevices())
"""Too early to say anything: who was given devices waits."""


def sight(
    pods: Iterable[Pod],
    asked: Iterable[ApiPod],
    files: DeviceFiles,
    existing: Iterable[Holding] = (),
    by: SightPolicy = SightPolicy(),  # noqa: B008  a frozen value
    before: Holders = MappingProxyType({}),
) -> Sight:
    """`asked`: the pods whose requests are known; `existing`: what pods hold that no scheduler gave
    it to; `before`: who had what at the last look. Of two pods with one device it is the one that
    had it, then the one whose containers exist, then the older one. Where the node has no GPU, none
    is hidden."""
    known = {each.runtime_uid: each for each in asked}
    ordered = sorted(pods, key=lambda pod: (not pod.containers, pod.created_at, pod.uid))
    decided = shown(
        [
            DevicePod(
                pod.uid,
                pod.title,
                pod.annotations,
                pod.labels,
                container_wishes(known[pod.uid]) if pod.uid in known else None,
            )
            for pod in ordered
        ],
        files,
        by.isolation,
        _elsewhere(existing, {pod.uid: pod.title for pod in ordered}),
        before,
        {pod.uid for pod in ordered if pod.containers},
    )
    unasked = "leave" if files.cards == () else by.unasked
    return Sight(decided, NodeDevices(held(files, decided), unasked, by.cdi_kind))


def holders(now: Sight | None, before: Holders, present: Collection[str]) -> Holders:
    """Who has what after a look. A pod on the node (`present`, by uid) about which nothing could be
    decided has what it had."""
    decided = now.pods if now else {}
    found: dict[str, set[str]] = {}
    for uid, pod in decided.items():
        for device in pod.devices:
            found.setdefault(device, set()).add(uid)
    for device, uids in before.items():
        for uid in uids:
            if uid not in decided and uid in present:
                found.setdefault(device, set()).add(uid)
    return found


def _elsewhere(existing: Iterable[Holding], titles: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """A part of a card is had by its own name: its card can't be had whole then."""
    found: dict[str, dict[str, str]] = {}
    for each in existing:
        if each.source is Source.ALLOCATION or each.form in _TAKES_NOTHING:
            continue
        # Of an instance that is shared, `MIG-a::1`, the whole of it.
        key = each.part.partition("::")[0] if each.form in _PARTS else each.device
        found.setdefault(key, {})[each.uid] = titles.get(each.uid, each.uid)
    return found
