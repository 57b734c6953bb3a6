"""Records of the audit trail: each decision about a pod and each write of a cgroup, with its
reason, as one JSON object a line.

A reader accepts records of later versions: it ignores fields that it does not know, and `event` and
`reason` are texts."""

from __future__ import annotations

import functools
import time
from typing import Final

import msgspec

from agent.model import bounds
from agent.model.bounds import JsonError

VERSION: Final = 1
FOLDER: Final = "audit"
"""The folder of the files, below the state folder."""

SANDBOX: Final = "the pod's sandbox"
"""The beginning of the message of a write to a sandbox."""


class AuditEvent:
    """What happened: to a process, to a pool, to a pod or container by a decision of the agent, to
    a request that a frontend answered, or to a file of a cgroup."""

    PROCESS_STARTED: Final = "ProcessStarted"
    RECORDS_LOST: Final = "RecordsLost"
    POOL_CHANGED: Final = "PoolChanged"
    POD_DECIDED: Final = "PodDecided"
    POD_ENDED: Final = "PodEnded"
    CPUS_ASSIGNED: Final = "CPUsAssigned"
    CPUS_CHANGED: Final = "CPUsChanged"
    CPUS_RELEASED: Final = "CPUsReleased"
    CPUS_MOVED: Final = "CPUsMoved"
    CPUS_REBOUND: Final = "CPUsRebound"
    CPUS_IN_USE: Final = "CPUsInUse"
    CPUS_FREE: Final = "CPUsFree"
    CLAIM_NOT_HONORED: Final = "CPUClaimNotHonored"
    DEVICES_CHANGED: Final = "DevicesChanged"
    DEVICES_REFUSED: Final = "DevicesRefused"
    CLAIM_PREPARED: Final = "ResourceClaimPrepared"
    CLAIM_NOT_PREPARED: Final = "ResourceClaimNotPrepared"
    CLAIM_UNPREPARED: Final = "ResourceClaimUnprepared"
    CONTAINER_ADMITTED: Final = "ContainerAdmitted"
    CONTAINER_REFUSED: Final = "ContainerRefused"
    START_CHANGED: Final = "StartChanged"
    UPDATE_ADMITTED: Final = "UpdateAdmitted"
    UPDATE_REFUSED: Final = "UpdateRefused"
    CGROUP_WRITTEN: Final = "CgroupWritten"
    CGROUP_WRITE_FAILED: Final = "CgroupWriteFailed"
    CGROUP_RESTORED: Final = "CgroupRestored"


class WriteReason:
    """Why a file of a cgroup was written. Other records have the reasons of decisions."""

    DECISION: Final = "Decision"
    CHANGED_BY_OTHER: Final = "ChangedByOther"
    SANDBOX_ANNOUNCED = "SandboxAnnounced"
    SANDBOX_MADE = "SandboxMade"
    RELATED_GROUP = "RelatedGroup"
    EXCLUDED = "Excluded"
    LIMIT_ENDED = "LimitEnded"
    RESTORE = "Restore"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the audit trail. `version`, `time` and `process` are set when it is written."""

    version: int = 0
    time: str = ""
    """The text of `stamp`."""
    process: str = ""
    """The subcommand."""
    event: str = ""
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    field: str = ""
    """What changed: `cpus`, `devices`, the pool, or the file of the cgroup `group`."""
    numa_node: int | None = None
    """The NUMA node of a pool, None for other changes."""
    group: str = ""
    before: str | None = None
    """The former value, None if unknown."""
    after: str | None = None
    """The new value, None if unknown."""
    reason: str = ""
    message: str = ""
    """A sentence that adds the cause."""

    @property
    def title(self) -> str:
        """The pod, "" if the record is not about one."""
        return f"{self.namespace}/{self.pod}" if self.pod else ""


_encoder = msgspec.json.Encoder()


@functools.cache
def _decoder() -> msgspec.json.Decoder[Record]:
    """Built at the first use, because daemons only write records."""
    return msgspec.json.Decoder(Record)


def of_pod(title: str, event: str, *, uid: str = "", container: str = "") -> Record:
    """A record about the pod with this title, `NAMESPACE/POD`."""
    namespace, _, pod = title.partition("/")
    return Record(event=event, namespace=namespace, pod=pod, uid=uid, container=container)


def stamp(seconds: float) -> str:
    """Seconds since 1970 as a time of RFC 3339 in UTC with microseconds, so that times compare as
    texts."""
    whole, fraction = divmod(round(seconds * 1e6), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{fraction:06d}Z"


def encode(record: Record) -> bytes:
    """One line. Bytes of names that are not UTF-8 are replaced, and long messages cut."""
    if len(record.message) > bounds.REASON_CHARACTERS:
        record = msgspec.structs.replace(record, message=bounds.reason(record.message))
    try:
        return _encoder.encode(record) + b"\n"
    except UnicodeEncodeError:
        texts = {
            name: value.encode(errors="replace").decode()
            for name, value in msgspec.structs.asdict(record).items()
            if isinstance(value, str)
        }
        return _encoder.encode(msgspec.structs.replace(record, **texts)) + b"\n"


def decode(line: bytes) -> Record | None:
    """The record in a line; None if the line is not a record, such as an incomplete line of a
    process that was killed."""
    try:
        record = bounds.decode(_decoder(), line)
    except JsonError:
        return None
    return record if record.version and record.time else None
