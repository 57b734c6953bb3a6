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
    """The QoS class that follows from the place of a pod's (or a container's) cgroup. None for a
    place outside the kubelet's, and for its root. The kubelet's root (`cgroupRoot`) may precede
    `kubepods`."""
    for word, below in pairwise(_words(cgroup_parent)):
        if word == "kubepods":
            if below == "burstable":
                return "burstable"
            if below == "besteffort":
                return "besteffort"
            if below.startswith("pod"):
                return "guaranteed"
    return None


def is_qos_root(group: str) -> bool:
    """Whether the kubelet keeps its pods below this group, of all classes or of one.

    Such a group is the kubelet's: it writes its files at start, and does not start where the
    kernel refuses that.
    """
    return _words(group)[-2:] in _QOS_ROOTS or _words(group)[-1:] == ["kubepods"]


_QOS_ROOTS: Final = tuple(["kubepods", each] for each in ("guaranteed", "burstable", "besteffort"))


def _words(group: str) -> list[str]:
    """The names of nested groups; a slice's name holds those of the slices above it."""
    words: list[str] = []
    for part in group.split("/"):
        if part.endswith(_SLICE):
            words = part.removesuffix(_SLICE).split("-")
        elif part:
            words.append(part)
    return words
