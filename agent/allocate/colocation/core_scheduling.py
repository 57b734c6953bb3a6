"""Core scheduling: the kernel lets only threads with the same cookie run at the same time on the
hardware threads of a core (Linux: Documentation/admin-guide/hw-vuln/core-scheduling.rst), so that
each group of pods has a cookie (Koordinator: pkg/koordlet/runtimehooks/hooks/coresched).

A cookie is a number that the kernel chooses, and exists as long as a thread has it: what is decided
and journalled are the names of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    last: Mapping[str, int], containers: Iterable[tuple[Sequence[str], Collection[int]]]
) -> dict[str, int]:
    """The cookie of each group: no two groups have the same, and each cookie that the agent has
    made is that of a group which all containers with it may have.

    `last`: what they had; it stays as long as a thread of the containers has the cookie.
    `containers`: the groups of each that are in the journal, the newest last, and the cookies of
        its threads. Those of most containers come first: a process can choose another cookie."""
    possible: dict[int, list[str]] = {}
    numbers: Counter[int] = Counter()
    for groups, cookies in containers:
        numbers.update(set(cookies))
        for cookie in cookies:
            before = possible.get(cookie, groups[::-1])
            possible[cookie] = [group for group in before if group in groups]
    of_groups = {group: cookie for group, cookie in last.items() if cookie in possible}
    kept = set(of_groups)
    unnamed = possible.keys() - of_groups.values()
    for cookie in sorted(unnamed, key=lambda cookie: (-numbers[cookie], cookie)):
        _name(cookie, possible, of_groups, set(kept))
    return of_groups


def _name(
    cookie: int,
    possible: Mapping[int, Collection[str]],
    of_groups: dict[str, int],
    tried: set[str],
) -> bool:
    """Whether the cookie has become that of a group, in whose place another cookie may have become
    that of another group: a step of a bipartite matching."""
    for group in possible[cookie]:
        if group not in tried:
            tried.add(group)
            if group not in of_groups or _name(of_groups[group], possible, of_groups, tried):
                of_groups[group] = cookie
                return True
    return False


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
