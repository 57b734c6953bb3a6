"""Kinds that Koordinator installs in a cluster, without their schemas."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

_ANY: Final[Object] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition(
    kind: str, group: str, *, scope: str = "Cluster", default: Object | None = None
) -> Object:
    """The definition of a kind with a status. `default`: the spec of an object that has none."""
    name = kind.lower()
    plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
    spec = _ANY if default is None else {**_ANY, "default": default}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # The API server wants a word about groups below k8s.io.
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": name},
            "scope": scope,
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {"spec": spec, "status": _ANY},
                        }
                    },
                }
            ],
        },
    }


NODE_METRIC_DEFINITION: Final = definition("NodeMetric", "slo.koordinator.sh")
NODE_SLO: Final = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO"}
NODE_SLOS: Final = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
NODE_SLO_DEFINITION: Final = definition("NodeSLO", "slo.koordinator.sh")
DEFINITIONS: Final = (
    NODE_METRIC_DEFINITION,
    NODE_SLO_DEFINITION,
    definition("Reservation", "scheduling.koordinator.sh"),
    definition("ClusterNetworkTopology", "scheduling.koordinator.sh"),
    definition("ElasticQuota", "scheduling.sigs.k8s.io", scope="Namespaced"),
    definition("PodGroup", "scheduling.sigs.k8s.io", scope="Namespaced"),
)
"""The kinds that koord-manager and koord-scheduler watch, and that Topolet does not define."""
