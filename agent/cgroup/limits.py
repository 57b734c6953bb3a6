"""The fields of CgroupLimits as files of a group, as the machine's controllers have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from agent.cgroup import notation
from agent.cgroup.controllers import Controller, Controllers
from agent.cgroup.hierarchy import CgroupError
from agent.model.snapshot import UNLIMITED, CgroupLimits


class Field(msgspec.Struct, frozen=True):
    """One field of CgroupLimits and its file on each version; None where that has none."""

    name: str
    controller: Controller
    v1: str
    v2: str | None


FIELDS: Final = (
    Field("quota_microseconds", "cpu", notation.QUOTA, notation.MAX),
    Field("shares", "cpu", notation.SHARES, notation.WEIGHT),
    Field("memory_limit_bytes", "memory", notation.MEMORY, notation.MEMORY_MAX),
    Field("mems", "cpuset", notation.MEMS, notation.MEMS),
    Field("migrate", "cpuset", notation.MIGRATE, None),
)


_MEMORY: Final = (notation.MEMORY, notation.MEMORY_MAX)


def read(controllers: Controllers, group: str) -> CgroupLimits:
    """The values of the group; None for those that the machine does not have. Raises CgroupError,
    GroupGone. Shares of a v2 weight are the fewest that it may stand for."""
    texts = {}
    for field in FIELDS:
        version = controllers.version(field.controller)
        file = field.v1 if version == 1 else field.v2
        if version is not None and file is not None:
            text = controllers.read(group, file)
            if text is not None:
                texts[file] = text
    return parsed(controllers, group, texts)


def parsed(controllers: Controllers, group: str, texts: Mapping[str, str]) -> CgroupLimits:
    """What these texts mean in files of the group. Raises CgroupError, GroupGone."""
    values = {}
    for field in FIELDS:
        for file in {field.v1, field.v2 or field.v1} & texts.keys():
            try:
                values[field.name] = _value(controllers, group, file, texts[file])
            except ValueError as error:
                raise CgroupError(f"cannot understand {file} of {group!r}: {error}") from error
    return msgspec.structs.replace(CgroupLimits(), **values)


def files(controllers: Controllers, limits: CgroupLimits) -> Iterator[str]:
    """The files of the limits that are set; none of a missing controller."""
    for field in FIELDS:
        version = controllers.version(field.controller)
        if version is not None and getattr(limits, field.name) is not None:
            file = field.v1 if version == 1 else field.v2
            if file is not None:
                yield file


def lifts(limits: CgroupLimits, file: str) -> bool:
    """Whether the limits remove the limit of the file."""
    if file in (notation.QUOTA, notation.MAX):
        return limits.quota_microseconds == UNLIMITED
    return file in _MEMORY and limits.memory_limit_bytes == UNLIMITED


def text(controllers: Controllers, group: str, file: str, limits: CgroupLimits, old: str) -> str:
    """The wanted content of the file, whose content is `old`. Raises CgroupError, ValueError."""
    quota, shares, memory = limits.quota_microseconds, limits.shares, limits.memory_limit_bytes
    if file == notation.QUOTA and quota is not None:
        return notation.quota_text(quota, _period(controllers, group))
    if file == notation.MAX and quota is not None:
        return notation.max_text(quota, old)
    if file == notation.SHARES and shares is not None:
        return str(shares)
    if file == notation.WEIGHT and shares is not None:
        return str(notation.weight(shares))
    if file in _MEMORY and memory is not None:
        return notation.memory_text(memory, file)
    if file == notation.MEMS and limits.mems is not None:
        if not limits.mems and controllers.version("cpuset") == 1:
            raise ValueError("no memory nodes are wanted, and cgroup v1 can't inherit")
        return str(limits.mems)
    if file == notation.MIGRATE and limits.migrate is not None:
        return str(int(limits.migrate))
    raise ValueError(f"{file!r} is not wanted")


def _value(controllers: Controllers, group: str, file: str, text: str) -> object:
    match file:
        case notation.QUOTA:
            return notation.quota_of(text, _period(controllers, group))
        case notation.MAX:
            return notation.quota_of_max(text)
        case notation.SHARES:
            return int(text)
        case notation.WEIGHT:
            return notation.shares_of_weight(int(text))
        case notation.MEMORY | notation.MEMORY_MAX:
            return notation.memory_of(text)
        case notation.MEMS:
            return notation.nodes(text)
        case _:
            return text != "0"


def _period(controllers: Controllers, group: str) -> str:
    period = controllers.read(group, notation.PERIOD)
    if period is None:
        raise CgroupError(f"{group!r} has no {notation.PERIOD}")
    return period
