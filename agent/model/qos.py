"""Koordinator's QoS classes and how a pod gets its class."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal

QOS_LABEL = "koordinator.sh/qosClass"

KubeClass = Literal["guaranteed", "burstable", "besteffort"]


class QoS(enum.StrEnum):
    """LSE and LSR own CPUs, LS and BE share pools, SYSTEM stays out of the way."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


_BY_LABEL = {each.value: each for each in QoS}


def qos_of(labels: Mapping[str, str], kube_class: KubeClass | None) -> QoS:
    """The label decides; without a known one BestEffort is BE and everything else LS."""
    by_label = _BY_LABEL.get(labels.get(QOS_LABEL, ""))
    return by_label or (QoS.BE if kube_class == "besteffort" else QoS.LS)


def labelled(labels: Mapping[str, str]) -> bool:
    """Whether the pod names its own class."""
    return labels.get(QOS_LABEL, "") in _BY_LABEL
