"""RebindResource (fine-grained CPU orchestration proposal): a request to place the pods of one node
again, with its result. Topolet adds the fields `dryRun`, `maxPods`, `excludedNamespaces` and
`hours` to the spec, and the plan to the status."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from agent.model.objects import ObjectIdentity, decoded

KIND: Final = "RebindResource"
GROUP: Final = "scheduling.koordinator.sh"
DEADLINE_SECONDS: Final = 600
"""The proposal's DefaultDeadlineInSeconds."""
MAX_DEADLINE_SECONDS: Final = 86_400
"""The node takes no pods meanwhile; a longer deadline counts as this one."""


class RebindPhase(enum.StrEnum):
    PENDING = "Pending"
    """It waits or is in progress."""
    SUCCEED = "Succeed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    """No scheduler has accepted it, or it could be neither completed nor undone."""


class StatusMove(msgspec.Struct, frozen=True):
    """One rewrite of a pod's resource-status, from one text to another."""

    uid: str
    pod: str
    """The pod as namespace/name."""
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")


class StatusMeasures(msgspec.Struct, frozen=True):
    """See `allocate.rebind.arrangement.Measures`."""

    numa_crossings: int = msgspec.field(default=0, name="numaCrossings")
    broken_cores: int = msgspec.field(default=0, name="brokenCores")
    used_cores: int = msgspec.field(default=0, name="usedCores")
    used_numa_nodes: int = msgspec.field(default=0, name="usedNUMANodes")


class StatusPlan(msgspec.Struct, frozen=True, rename="camel"):
    started_at: str = ""
    """When it was written (RFC 3339), from which the deadline counts."""
    undoing: bool = False
    """The moves are being undone, for the reason in the status."""
    before: StatusMeasures = StatusMeasures()
    after: StatusMeasures = StatusMeasures()
    moves: tuple[StatusMove, ...] = ()


class RebindStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: RebindPhase = RebindPhase.UNKNOWN
    reason: str = ""
    update_timestamp: str = ""
    """Empty until a scheduler has accepted the object; before that the other fields have the
    defaults of its CustomResourceDefinition."""
    plan: StatusPlan | None = None

    @property
    def taken(self) -> bool:
        """Whether a scheduler has accepted the object."""
        return bool(self.update_timestamp)

    @property
    def ended(self) -> bool:
        return self.taken and self.phase is not RebindPhase.PENDING

    @property
    def in_progress(self) -> bool:
        """Whether pods may have moved. The node gets no new pods until it has ended."""
        return self.taken and self.phase is RebindPhase.PENDING and self.plan is not None


class RebindHours(msgspec.Struct, frozen=True):
    """The time of the day (UTC) in which a rebind may begin. With equal ends that is always; with
    `begin` after `end` it includes midnight."""

    begin: int = 0
    """In minutes since midnight, as `end`."""
    end: int = 0

    @classmethod
    def parsed(cls, text: str) -> RebindHours:
        """`HH:MM-HH:MM`; "": always."""
        if not text:
            return cls()
        begin, end = (int(each[:2]) * 60 + int(each[3:]) for each in text.split("-"))
        return cls(begin, end)

    def contain(self, at_seconds: float) -> bool:
        minute = int(at_seconds // 60) % (24 * 60)
        if self.begin <= self.end:
            return self.begin == self.end or self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


class RebindRequest(msgspec.Struct, frozen=True):
    """A RebindResource."""

    name: str
    uid: str
    node: str
    resource_version: str = ""
    created_at: str = ""
    """In RFC 3339."""
    deadline_seconds: int = DEADLINE_SECONDS
    dry_run: bool = False
    max_pods: int | None = None
    """None for no limit."""
    excluded_namespaces: frozenset[str] = frozenset()
    hours: RebindHours = RebindHours()
    status: RebindStatus = RebindStatus()


def decode(text: bytes) -> RebindRequest:
    """Raises ObjectError."""
    raw = decoded(text, KIND, _decoder)
    metadata, spec = raw.metadata, raw.spec
    return RebindRequest(
        metadata.name,
        metadata.uid,
        spec.node_name,
        metadata.resource_version,
        metadata.creation_timestamp,
        min(spec.deadline_in_seconds or DEADLINE_SECONDS, MAX_DEADLINE_SECONDS),
        spec.dry_run,
        spec.max_pods,
        frozenset(spec.excluded_namespaces),
        RebindHours.parsed(spec.hours),
        raw.status or RebindStatus(),
    )


def new(
    node: str,
    *,
    dry_run: bool = False,
    max_pods: int | None = None,
) -> dict[str, Any]:
    """An object without a name: the API server generates it (`generateName`)."""
    spec: dict[str, Any] = {"nodeName": node, "rebindAction": _ACTION}
    if dry_run:
        spec["dryRun"] = True
    if max_pods is not None:
        spec["maxPods"] = max_pods
    metadata = {"generateName": f"{node}-"}
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": KIND, "metadata": metadata, "spec": spec}


def status_body(request: RebindRequest, status: RebindStatus) -> dict[str, Any]:
    """A merge patch of the status, only for this version of the object. A plan that the status does
    not have is removed."""
    body: Mapping[str, Any] = msgspec.to_builtins(status)
    return {
        "metadata": {"uid": request.uid, "resourceVersion": request.resource_version},
        "status": dict(body),
    }


def time_text(unix_seconds: float) -> str:
    """RFC 3339, in whole seconds."""
    at = datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC)
    return at.strftime(_FORMAT)


def unix_seconds(text: str) -> float | None:
    """The time in seconds since 1970, None for a text that `time_text` does not write."""
    try:
        at = datetime.datetime.strptime(text, _FORMAT)
    except ValueError:
        return None
    return at.replace(tzinfo=datetime.UTC).timestamp()


_ACTION: Final = "RebindCPU"
_HOURS: Final = r"^(([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d)?$"
_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"


class _Metadata(ObjectIdentity, frozen=True, rename="camel"):
    resource_version: str = ""
    creation_timestamp: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str
    deadline_in_seconds: int | None = None
    dry_run: bool = False
    max_pods: int | None = None
    excluded_namespaces: tuple[str, ...] = ()
    hours: Annotated[str, msgspec.Meta(pattern=_HOURS)] = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec
    status: RebindStatus | None = None


_decoder: Final = msgspec.json.Decoder(_Object)
