"""Why a node has no devices for a pod."""

from __future__ import annotations

import enum

import msgspec


class DeviceCause(enum.StrEnum):
    INSUFFICIENT = "insufficient"
    """Fewer devices that fit than are asked for."""
    NO_DEVICES = "no-devices"
    NO_VIRTUAL_FUNCTIONS = "no-virtual-functions"
    SCOPE = "scope"
    """Enough of them, but not within the scope that the pod demands."""
    NO_TOPOLOGY = "no-topology"
    """A scope is demanded of devices that do not say where they sit."""
    NO_PARTITION_TABLE = "no-partition-table"
    PARTITION_SIZE = "partition-size"
    """The partition table has no sets of so many cards."""
    PARTITION = "partition"
    """No set of the partition table is free, or as fast as asked."""
    JOINT = "joint"
    """No switches that have every type of device that is asked for together."""


class DeviceRefusal(msgspec.Struct, frozen=True):
    """`type`: the devices that are lacking."""

    type: str
    cause: DeviceCause
