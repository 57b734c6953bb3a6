"""Koordinator's QoS classes and how a pod gets its class."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, Literal

QOS_LABEL = "koordinator.sh/qosClass"

KubeClass = Literal["guaranteed", "burstable", "besteffort"]


class QoS(enum.StrEnum):
    """LSE and LSR own CPUs, LS and BE share pools, SYSTEM stays out of the way."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


_SLICE: Final = ".slice"
_BY_LABEL = {each.value: each for each in QoS}


def qos_of(labels: Mapping[str, str], kube_class: KubeClass | None) -> QoS:
    """The label decides; without a known one BestEffort is BE and everything else LS."""
    by_label = _BY_LABEL.get(labels.get(QOS_LABEL, ""))
    return by_label or (QoS.BE if kube_class == "besteffort" else QoS.LS)


def kube_class(cgroup_parent: str) -> KubeClass | None:
    """The QoS class that the kubelet expressed by the place of a pod's (or a container's) group.

    None for a place that is not the kubelet's, and for the kubelet's root itself. The kubelet's
    own root (`cgroupRoot`) may stand before `kubepods`.
    """
    words: list[str] = []
    for part in cgroup_parent.split("/"):
        if part.endswith(_SLICE):
            words = part.removesuffix(_SLICE).split("-")
        elif part:
            words.append(part)
    for word, below in pairwise(words):
        if word == "kubepods":
            if below == "burstable":
                return "burstable"
            if below == "besteffort":
                return "besteffort"
            if below.startswith("pod"):
                return "guaranteed"
    return None
