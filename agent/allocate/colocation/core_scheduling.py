"""Core scheduling: the kernel lets only threads with the same cookie run at the same time on the
hardware threads of a core (Linux: Documentation/admin-guide/hw-vuln/core-scheduling.rst), so that
each group of pods has a cookie (Koordinator: pkg/koordlet/runtimehooks/hooks/coresched).

A cookie is a number that the kernel chooses, and exists as long as a thread has it: what is decided
and journalled are the names of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from agent.model.pod.annotations import CORE_GROUP_LABEL, CORE_POLICY_LABEL
from agent.model.pod.qos import QoS

if TYPE_CHECKING:
    from agent.model.node_slo import CpuQos

NO_GROUP: Final = "none"
"""The name for threads without a cookie."""


def core_group(uid: str, qos: QoS, labels: Mapping[str, str], cpu_qos: CpuQos) -> str | None:
    """The name of the pod's group; None for a pod without one. Neither a group of another kind nor
    the UID of another pod has the same name, whatever the labels say.

    `cpu_qos`: in force for the pod."""
    policy = labels.get(CORE_POLICY_LABEL, "")
    if not cpu_qos.enable or qos is QoS.SYSTEM or policy == "none":
        return None
    if policy == "exclusive":
        return f"pod/{uid}"
    kind = "expeller" if cpu_qos.core_expeller else "group"
    return f"{kind}/{labels.get(CORE_GROUP_LABEL, '')}"


def cookies_of_groups(
    known: Mapping[str, int], containers: Iterable[tuple[Collection[str], Collection[int]]]
) -> dict[str, int]:
    """The cookie of each group: no two groups have the same.

    `known`: what they had; it stays as long as a thread of the containers has the cookie.
    `containers`: the groups of each that are in the journal, the newest last, and the cookies of
        its threads. Most containers decide, because a process can choose another cookie."""
    votes: Counter[tuple[str, int]] = Counter()
    present: set[int] = set()
    for groups, cookies in containers:
        present.update(cookies)
        for number, group in enumerate(groups, 1):
            weight = 2 if number == len(groups) else 1
            votes.update({(group, cookie): weight for cookie in cookies})
    of_groups = {group: cookie for group, cookie in known.items() if cookie in present}
    for (group, cookie), _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0])):
        if group not in of_groups and cookie not in of_groups.values():
            of_groups[group] = cookie
    return of_groups


def without_cookie(
    threads: Mapping[int, int], cookie: int | None, of_groups: Collection[int]
) -> tuple[int, ...]:
    """The threads that shall get the cookie: all but those that have a cookie of another program.

    `threads`: the cookies that they have, 0 for none.
    `cookie`: None for one that does not exist.
    `of_groups`: the cookies of all groups."""
    return tuple(
        thread
        for thread, present in sorted(threads.items())
        if present != cookie and (not present or present in of_groups)
    )
