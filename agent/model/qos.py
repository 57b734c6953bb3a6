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


def kube_class(cgroup_parent: str) -> KubeClass | None:
    """The Kubernetes class that a pod's cgroup parent tells, None outside `kubepods`.

    Both drivers' names: `/kubepods/burstable/pod<uid>` and `kubepods-burstable-pod<uid>.slice`,
    also below a cgroup root of the kubelet.
    """
    words: list[str] = []
    for part in cgroup_parent.split("/"):
        bare = part.removesuffix(".slice")
        words += [part] if bare == part else bare.split("-")
    if "kubepods" not in words:
        return None
    below = words[words.index("kubepods") + 1 :]
    if "burstable" in below[:1]:
        return "burstable"
    return "besteffort" if "besteffort" in below[:1] else "guaranteed"
