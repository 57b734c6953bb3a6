"""Reservations of Koordinator as the API server sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent.kube.objects import Change, ChangeKind, ObjectKey
from agent.model.pod.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from agent.scheduler.state.koordinator_reservations import ReservationRecord, reservation

CORE = "koordinator.sh/gpu-core"
DELETED = ChangeKind.DELETED


def card(minor: int, percent: int) -> dict[str, Any]:
    return {"minor": minor, "id": f"GPU-{minor}", "resources": {CORE: str(percent)}}


def allocation(cpus: str = "", cards: Mapping[int, int] | None = None) -> dict[str, str]:
    """The annotations. `cards`: percents by minor."""
    notes = {}
    if cpus:
        notes[RESOURCE_STATUS] = json.dumps({"cpuset": cpus})
    if cards:
        devices = [card(minor, percent) for minor, percent in cards.items()]
        notes[DEVICE_ALLOCATED] = json.dumps({"gpu": devices})
    return notes


def body(
    name: str,
    annotations: Mapping[str, str],
    *,
    node: str = "n",
    phase: str = "Available",
    uid: str = "",
    template: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "annotations": dict(annotations)},
        "spec": {"template": {"metadata": {"annotations": dict(template or {})}}, "owners": []},
        "status": {"phase": phase, "nodeName": node},
    }


def read(object_: Mapping[str, Any]) -> ReservationRecord:
    return reservation(json.dumps(object_).encode())


def event(object_: Mapping[str, Any], kind: ChangeKind = ChangeKind.MODIFIED) -> Change[Any]:
    return Change(kind, ObjectKey("", object_["metadata"]["name"]), read(object_))
