"""Builders of the device requests of containers."""

from __future__ import annotations

from collections.abc import Mapping

from agent.model.devices.device_request import TypeRequest


def type_request(count: int, per: Mapping[str, int] = {}, *, shared: bool = False) -> TypeRequest:
    """A request for one type, with `per` of each device."""
    total = {name: amount * count for name, amount in per.items()}
    return TypeRequest(total, count, dict(per), shared)
