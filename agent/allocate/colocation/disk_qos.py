"""Limits, weights and costs of disks: the values of files of cgroups for `blkioQOS` (kernel:
Documentation/admin-guide/cgroup-v2.rst, "IO"; cgroup-v1/blkio-controller.rst).

A value has the name `FILE DISK` or `FILE DISK FIELD` (`agent.cgroup.lines`); a disk is
MAJOR:MINOR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from agent.model.node_slo import IoConfig

_MAX_IOPS: Final = (1 << 32) - 1
"""The kernel keeps 32 bits; this amount means no limit."""
_LATENCY_MICROSECONDS: Final = 3000
_LATENCY_PERCENT: Final = 95
_LIMITS: Final = {
    "rbps": "read_bps",
    "wbps": "write_bps",
    "riops": "read_iops",
    "wiops": "write_iops",
}
"""By the field of `io.max`."""
_THROTTLES: Final = {
    "rbps": "blkio.throttle.read_bps_device",
    "wbps": "blkio.throttle.write_bps_device",
    "riops": "blkio.throttle.read_iops_device",
    "wiops": "blkio.throttle.write_iops_device",
}
"""The files of cgroup v1."""
_MODEL: Final = {
    "rbps": "model_read_bps",
    "rseqiops": "model_read_seq_iops",
    "rrandiops": "model_read_rand_iops",
    "wbps": "model_write_bps",
    "wseqiops": "model_write_seq_iops",
    "wrandiops": "model_write_rand_iops",
}
"""By the parameter of `io.cost.model`."""
_COSTS: Final = (
    "read_latency",
    "write_latency",
    "read_latency_percent",
    "write_latency_percent",
    "enable_user_model",
    *_MODEL.values(),
)


def limits(
    config: IoConfig, disk: str, version: Literal[1, 2], groups: int = 1
) -> Mapping[str, str]:
    """The limits of a group; those of v1 are divided, because the kernel does not count there what
    the groups in a group do.

    `groups`: so many share the limits on v1; 0 while no container of the pod or class runs."""
    texts = {}
    for field, of_config in _LIMITS.items():
        amount: int | None = getattr(config, of_config)
        if amount is None:
            continue
        if field.endswith("iops") and amount >= _MAX_IOPS:
            amount = 0
        if version == 2:
            texts[f"io.max {disk} {field}"] = str(amount) if amount else "max"
        else:
            share = max(1, amount // max(1, groups)) if amount else 0
            texts[f"{_THROTTLES[field]} {disk}"] = str(share)
    return texts


def weight(config: IoConfig, disk: str, file: str) -> Mapping[str, str]:
    """The weight of a group among those beside it; without one, all have 100."""
    if config.io_weight_percent is None:
        return {}
    return {f"{file} {disk}": str(config.io_weight_percent)}


def stricter(one: str, other: str) -> str:
    """The lower one of two limits of the same group and disk."""
    return min(one, other, key=lambda text: int(text) if text not in ("0", "max") else 1 << 64)


def wants_cost(config: IoConfig) -> bool:
    """Whether the kernel is to share the disk by cost, so that latencies stay below what is wanted;
    weights need it."""
    return any(getattr(config, field) is not None for field in _COSTS[:4])


def cost(config: IoConfig, disk: str, controller: Literal["io", "blkio"]) -> Mapping[str, str]:
    """What the kernel shares the disk by: the latencies that it keeps, and how much the disk does.
    The kernel slows all groups until the given percentage of operations is within its latency."""
    texts = {}
    if wants_cost(config):
        read_percent, write_percent = (
            _LATENCY_PERCENT if percent is None else percent
            for percent in (config.read_latency_percent, config.write_latency_percent)
        )
        read, write = (
            _LATENCY_MICROSECONDS if latency is None else latency
            for latency in (config.read_latency, config.write_latency)
        )
        texts[f"{controller}.cost.qos {disk}"] = (
            f"enable=1 ctrl=user rpct={read_percent}.00 rlat={read} wpct={write_percent}.00 "
            f"wlat={write} min=1.00 max=10000.00"
        )
    model = {name: getattr(config, field) for name, field in _MODEL.items()}
    if config.enable_user_model and None not in model.values():
        words = (f"{name}={amount}" for name, amount in model.items())
        texts[f"{controller}.cost.model {disk}"] = f"ctrl=user model=linear {' '.join(words)}"
    return texts


def faults(config: IoConfig, *, of_machine: bool) -> list[str]:
    """What has no effect, as sentences. `of_machine`: the disk is one of `cgroupRoot`."""
    sentences = []
    if of_machine:
        if config.enable_user_model:
            missing = [field for field in _MODEL.values() if getattr(config, field) is None]
            sentences += [f"enableUserModel needs {_json(missing)}"] if missing else []
        fields: tuple[str, ...] = (*_LIMITS.values(), "io_weight_percent")
        where = "the group of the machine has neither limits nor a weight"
    else:
        fields, where = _COSTS, "the kernel has one cost of a disk: it belongs to cgroupRoot"
    misplaced = [field for field in fields if getattr(config, field) is not None]
    return [*sentences, *([f"{_json(misplaced)} has no effect: {where}"] if misplaced else [])]


def _json(fields: list[str]) -> str:
    names = dict(zip(IoConfig.__struct_fields__, IoConfig.__struct_encode_fields__, strict=True))
    return ", ".join(names[field] for field in fields)
