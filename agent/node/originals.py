"""What a container would hold had the proxy not changed its request, as texts of its files."""

from __future__ import annotations

import msgspec

from agent.cgroup import limits
from agent.cgroup.controllers import Controllers
from agent.cgroup.hierarchy import CgroupError
from agent.cgroup.journal import OriginalValue
from agent.model.cpuset import CpuSet, CpuSetError
from agent.model.doorbell import Asked, Created
from agent.model.limits import LEAST_SHARES, UNLIMITED, Limits


def replaced(controllers: Controllers, group: str, created: Created) -> tuple[OriginalValue, ...]:
    """The files in which something else stands now; none where the group can't be read. What the
    request leaves out is what runtimes make of nothing: no limit, and the least shares. What went
    on as it came is not ours, whatever the runtime made of it."""
    asked = created.asked
    try:
        mems: CpuSet | None = CpuSet.parse(asked.mems)
    except CpuSetError:
        mems = None
    original = Limits(
        quota_microseconds=asked.quota_microseconds or UNLIMITED,
        shares=asked.shares or LEAST_SHARES,
        memory_limit_bytes=asked.memory_limit_bytes or UNLIMITED,
        mems=mems,
    )
    original = msgspec.structs.replace(original, **dict.fromkeys(created.kept))
    return _values(controllers, group, original)


def resized(controllers: Controllers, group: str, asked: Asked) -> tuple[OriginalValue, ...]:
    """As `replaced`, of the quota alone, which we lift: a change leaves out what stays."""
    quota = asked.quota_microseconds or None
    return _values(controllers, group, Limits(quota_microseconds=quota))


def _values(controllers: Controllers, group: str, original: Limits) -> tuple[OriginalValue, ...]:
    values = []
    for file in limits.files(controllers, original):
        try:
            present = controllers.read(group, file)
            if present is None:
                continue
            text = limits.text(controllers, group, file, original, present)
        except (CgroupError, ValueError):
            continue
        if text != present:
            values.append(OriginalValue(group, file, text))
    return tuple(values)
