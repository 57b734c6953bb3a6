"""Which labels and annotations of a pod decisions read: what the doorbell carries, and where the
API's word counts before the runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from agent.model.annotations import EXTENDED_RESOURCE_SPEC, RESOURCE_STATUS, SHARED_CONTAINERS
from agent.model.device_allocation import DEVICE_ALLOCATED, GPU_ISOLATION_PROVIDER
from agent.model.qos import QOS_LABEL

LABELS: Final = (QOS_LABEL, GPU_ISOLATION_PROVIDER)
ANNOTATIONS: Final = (
    RESOURCE_STATUS,
    SHARED_CONTAINERS,
    EXTENDED_RESOURCE_SPEC,
    DEVICE_ALLOCATED,
)


class Words(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nothing but these."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


def words(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Words:
    """Those of a pod."""
    return Words(
        {key: labels[key] for key in LABELS if key in labels},
        {key: annotations[key] for key in ANNOTATIONS if key in annotations},
    )
