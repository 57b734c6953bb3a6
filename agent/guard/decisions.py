"""Whether a container may be created, by the agent's snapshot. Pure functions.

The guard refuses a container that has not got the values of the agent's decision, and one of a pod
that needs a decision which the snapshot does not have: it claims CPUs or devices by an annotation,
has CPUs of a ResourceClaim, or may own CPUs by the node's static policy. Every other container
passes if its CPUs are not those of another pod's owner. So without a snapshot all containers pass
whose pods claim nothing, as docs/admission.md decides for the frontends.
"""

from __future__ import annotations

from agent.guard.json import ScanError, decoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, Final

    from agent.guard.request import ValidatedContainer

VERSION: Final = 1
"""The version of the snapshot's format that can be read (`agent.model.snapshot`)."""
RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
QOS_LABEL: Final = "koordinator.sh/qosClass"
MOST_STATUS_BYTES: Final = 16 << 10
"""A longer annotation claims nothing: the agent reads none."""
_HAS_CLAIM: Final = "has CPUs of a ResourceClaim"
_SHARING: Final = ("LS", "BE", "SYSTEM")
"""The labels of pods that own no CPUs by a policy of the node."""
_OTHERS: Final = ("LSE", "LSR", "LS", "SYSTEM")
_SHARES_PER_CPU: Final = 1024
_MAX_CPU: Final = 8_191
_MOST_DIGITS: Final = 9
"""No longer number is a CPU's, as for the agent."""


class SnapshotFormError(ValueError):
    """A snapshot that can't be read; the text is the reason."""


class Decisions:
    """What the guard reads of a snapshot. `owned`: the uids of each owner and of the pods that
    use the same claims, its title, QoS class and CPUs.
    `pods`: the wanted values of pods by uid, as JSON objects."""

    __slots__ = (
        "boot_id",
        "decides_devices",
        "excluded",
        "gives_claims",
        "has_policy",
        "kubelet_is_static",
        "owned",
        "pods",
    )

    def __init__(self, text: bytes) -> None:
        """Raises SnapshotFormError."""
        try:
            snapshot = decoded(text)
            if snapshot["version"] != VERSION:
                raise SnapshotFormError(f"it has the version {snapshot['version']}, not {VERSION}")
            self.boot_id: str = snapshot["boot_id"]
            self.owned: list[tuple[frozenset[str], str, str, int]] = [
                (
                    frozenset((each["uid"], *each.get("sharers", ()))),
                    each["title"],
                    each["qos"],
                    cpu_mask(each["cpuset"]) or 0,
                )
                for each in snapshot["owners"]
            ]
            self.pods: dict[str, dict[str, Any]] = {
                uid: {
                    "title": each["title"],
                    "qos": each["qos"],
                    "each": dict(each["each"]),
                    "containers": dict(each.get("containers", {})),
                }
                for uid, each in snapshot["pods"].items()
            }
            self.excluded = [str(each) for each in snapshot.get("excluded", ())]
        except SnapshotFormError:
            raise
        except (ScanError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotFormError(f"{type(error).__name__}: {str(error)[:200]}") from None
        self.kubelet_is_static = bool(snapshot.get("kubelet_static"))
        self.has_policy = snapshot.get("cpu_policy", "none") != "none"
        self.gives_claims = bool(snapshot.get("gives_claims"))
        self.decides_devices = snapshot.get("devices") is not None


def refusal(
    container: ValidatedContainer, decisions: Decisions | None, exempt: Sequence[str] = ()
) -> str:
    """Why the container must not be created; "" if it may be.

    `decisions`: None without a snapshot of this boot.
    `exempt`: patterns of containers that are always created, as those in the snapshot's list."""
    patterns = [*exempt, *(decisions.excluded if decisions else ())]
    if _matches(patterns, (container.namespace, container.pod, container.name)):
        return ""
    if decisions is None:
        if _claims(container) or DEVICE_ALLOCATED in container.annotations:
            return f"pod {container.title} claims CPUs or devices, and the agent has not decided"
        if container.has_cpu_claim:
            return f"pod {container.title} {_HAS_CLAIM}, and the agent has not decided"
        return ""
    pod = decisions.pods.get(container.uid)
    if pod is None:
        if why := _undecided(container, decisions):
            return f"pod {container.title} {why}, and the agent has not decided about it"
        return _on_others(container, decisions, _class_of(container))
    wanted = pod["containers"].get(container.name)
    if wanted is None and decisions.has_policy and _may_own(container) and not _claims(container):
        return f"the agent has not decided about container {container.name} of pod {pod['title']}"
    if wanted is None:
        wanted = pod["each"]
    if container.has_cpu_claim and decisions.gives_claims and not wanted.get("exclusive"):
        return f"pod {pod['title']} {_HAS_CLAIM}, and the agent has not decided about it"
    cpus = wanted.get("resources", {}).get("cpuset", "")
    return (
        _blocked(pod["title"], wanted)
        or _without_own_cpus(container, pod["title"], wanted, cpus)
        or (_assigned_unread(container, wanted, cpus) if decisions.kubelet_is_static else "")
        or _without_devices(container, pod["title"], wanted, decisions)
        or ("" if _as_decided(container, cpus) else _on_others(container, decisions, pod["qos"]))
    )


def cpu_mask(cpus: str) -> int | None:
    """The CPUs in a Linux list as bits; None if the text is not a plain list."""
    mask = 0
    if not cpus.isascii():
        return None
    for part in filter(None, cpus.strip().split(",")):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            return None
        last = last if dash else first
        if len(first) > _MOST_DIGITS or len(last) > _MOST_DIGITS:
            return None
        low, high = int(first), int(last)
        if not low <= high <= _MAX_CPU:
            return None
        mask |= (1 << high + 1) - (1 << low)
    return mask


def _blocked(title: str, wanted: dict[str, Any]) -> str:
    blocked = wanted.get("blocked", "")
    return f"pod {title}: {blocked}" if blocked else ""


def _without_own_cpus(
    container: ValidatedContainer, title: str, wanted: dict[str, Any], cpus: str
) -> str:
    """CPUs that a static kubelet assigned are in the request, which may be newer than the agent's
    decision."""
    if not wanted.get("exclusive") or (wanted.get("kubelet") and container.cpuset):
        return ""
    mask = cpu_mask(container.cpuset)
    if cpus and mask == cpu_mask(cpus):
        return ""
    if "shared" in wanted and mask is not None:
        # The share of a mixed container follows its pool: the snapshot may be newer than the share.
        own = (cpu_mask(cpus) or 0) & ~_share(wanted)
        if own and own & ~mask == 0:
            return ""
        cpus = _list(own)
    place = f"CPUs {container.cpuset}" if container.cpuset else "any CPU"
    return (
        f"pod {title} owns CPUs {cpus}, but its container {container.name} would start on {place}"
    )


def _share(wanted: dict[str, Any]) -> int:
    """The CPUs of its pool on which a mixed container runs beside its own."""
    return cpu_mask(wanted.get("shared", "")) or 0


def _as_decided(container: ValidatedContainer, cpus: str) -> bool:
    """Whether the container has CPUs of the decision. Without any in it, the container has those
    that a static kubelet requests."""
    if not cpus:
        return True
    mask = cpu_mask(container.cpuset)
    return bool(mask) and (mask or 0) & ~(cpu_mask(cpus) or 0) == 0


def _assigned_unread(container: ValidatedContainer, wanted: dict[str, Any], cpus: str) -> str:
    """Whether a static kubelet assigned CPUs to the container that the agent has not read, so that
    other containers may still be there (`agent.hooks.cpuset`)."""
    share = _share(wanted)
    assigned = (cpu_mask(container.cpuset) or 0) & ~share
    if not cpus or not _may_own(container):
        return ""
    if assigned.bit_count() * _SHARES_PER_CPU != container.shares:
        return ""
    decided = (cpu_mask(cpus) or 0) & ~share
    if decided & ~assigned == 0 if wanted.get("kubelet") else decided == assigned:
        return ""
    return (
        f"the agent has not read that the kubelet assigned CPUs {container.cpuset} to container "
        f"{container.name} of pod {container.title}"
    )


def _without_devices(
    container: ValidatedContainer, title: str, wanted: dict[str, Any], decisions: Decisions
) -> str:
    if not decisions.decides_devices:
        return ""
    visible = wanted.get("visible")
    if visible is None:
        if DEVICE_ALLOCATED in container.annotations:
            return f"pod {title} claims devices, and the agent has not decided about them"
        return ""
    if visible.get("refused"):
        return f"pod {title}: {visible['refused']}"
    missing = [each["uuid"] for each in visible.get("gpus") or () if not _names(container, each)]
    missing += [
        node["path"]
        for nodes in visible.get("nodes", {}).values()
        for node in nodes
        if node["path"] not in container.nodes
    ]
    if not missing:
        return ""
    names = ", ".join(missing)
    return f"pod {title} was allocated {names}, but its container {container.name} has not got it"


def _names(container: ValidatedContainer, gpu: dict[str, Any]) -> bool:
    """Whether the container names the card or instance, or has its device nodes."""
    names = {gpu["uuid"], gpu.get("index") or gpu["uuid"]}
    if any(each.rpartition("=")[2].strip() in names for each in container.named):
        return True
    paths = {node["path"] for node in gpu.get("nodes", ())}
    return bool(paths) and paths <= container.nodes


def _on_others(container: ValidatedContainer, decisions: Decisions, qos: str) -> str:
    """BE pods may run on the CPUs of LSR pods, unless the scheduler gave an unlabelled one NUMA
    nodes (`agent.allocate.shares.pool_of`)."""
    labelled = container.labels.get(QOS_LABEL) == "BE"
    only_lse = qos == "BE" and (labelled or not _has_numa_nodes(container))
    mask = cpu_mask(container.cpuset) if container.cpuset else None
    for uids, title, owner_qos, cpus in decisions.owned:
        if container.uid in uids or (only_lse and owner_qos != "LSE"):
            continue
        taken = cpus if mask is None else mask & cpus
        if taken:
            place = f"CPUs {container.cpuset}" if container.cpuset else "any CPU"
            return (
                f"container {container.name} of pod {container.title} would start on {place}, "
                f"but pod {title} owns CPUs {_list(taken)}"
            )
    return ""


def _undecided(container: ValidatedContainer, decisions: Decisions) -> str:
    """What the pod needs a decision for; "" for nothing."""
    if _claims(container):
        return "claims CPUs"
    if container.has_cpu_claim and decisions.gives_claims:
        return _HAS_CLAIM
    if decisions.decides_devices and DEVICE_ALLOCATED in container.annotations:
        return "claims devices"
    if (decisions.has_policy or decisions.kubelet_is_static) and _may_own(container):
        return "may own CPUs by the node's policy"
    return ""


def _claims(container: ValidatedContainer) -> bool:
    """Whether the scheduler gave the pod CPUs of its own."""
    cpus = _resource_status(container).get("cpuset", "")
    return isinstance(cpus, str) and bool(cpu_mask(cpus))


def _has_numa_nodes(container: ValidatedContainer) -> bool:
    status = _resource_status(container)
    return bool(status.get("numaNodeResources") or status.get("cpuSharedPools"))


def _resource_status(container: ValidatedContainer) -> dict[str, Any]:
    """The scheduler's annotation; empty if it can't be read, as for the agent."""
    text = container.annotations.get(RESOURCE_STATUS, "").encode(errors="replace")
    if not text or len(text) > MOST_STATUS_BYTES:
        return {}
    try:
        status = decoded(text)
    except ScanError:
        return {}
    return status if isinstance(status, dict) else {}


def _may_own(container: ValidatedContainer) -> bool:
    """Whether a static policy gives the container CPUs: its pod is Guaranteed, and it requests
    whole CPUs (`agent.allocate.shares`)."""
    whole = container.shares and container.shares % _SHARES_PER_CPU == 0
    if not whole or container.labels.get(QOS_LABEL) in _SHARING:
        return False
    return kube_class(container.cgroup_parent) == "guaranteed"


def _class_of(container: ValidatedContainer) -> str:
    """BE, or LS for all other classes, of a pod that the snapshot does not have. BE counts only in
    a BestEffort cgroup, where it needs no label."""
    labelled_otherwise = container.labels.get(QOS_LABEL) in _OTHERS
    is_be = not labelled_otherwise and kube_class(container.cgroup_parent) == "besteffort"
    return "BE" if is_be else "LS"


def kube_class(cgroup_parent: str) -> str:
    """The Kubernetes QoS class that a pod's cgroup shows; "" if it shows none."""
    names = cgroup_parent.rstrip("/").removesuffix(".slice").replace("/", "-").split("-")
    if "kubepods" not in names:
        return ""
    below = names[names.index("kubepods") + 1 :]
    for name in ("burstable", "besteffort"):
        if name in (each.removesuffix(".slice") for each in below[:2]):
            return name
    return "guaranteed"


def _matches(patterns: Iterable[str], names: tuple[str, str, str]) -> bool:
    """Whether a pattern `NAMESPACE[/POD[/CONTAINER]]` fits (`agent.model.snapshot.excludes`)."""
    return any(
        all(fits(name, part) for name, part in zip(names, each.split("/"), strict=False))
        for each in patterns
    )


def fits(name: str, pattern: str) -> bool:
    """It is fnmatchcase without the modules of regular expressions."""
    if "[" in pattern:
        from fnmatch import fnmatchcase

        return fnmatchcase(name, pattern)
    if not pattern:
        return not name
    if pattern[0] == "*":
        return any(fits(name[at:], pattern[1:]) for at in range(len(name) + 1))
    return bool(name) and pattern[0] in ("?", name[0]) and fits(name[1:], pattern[1:])


def _list(mask: int) -> str:
    """The CPUs as a Linux list."""
    parts = []
    cpu = 0
    while mask >> cpu:
        cpu += (mask >> cpu & -(mask >> cpu)).bit_length() - 1
        first = cpu
        while mask >> cpu & 1:
            cpu += 1
        parts.append(f"{first}-{cpu - 1}" if cpu - 1 > first else f"{first}")
    return ",".join(parts)
