"""Kinds that Koordinator installs in a cluster, without their schemas."""

from __future__ import annotations

from typing import Any, Final

NODE_SLO: Final = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO"}
NODE_SLOS: Final = "/apis/slo.koordinator.sh/v1alpha1/nodeslos"
NODE_SLO_DEFINITION: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodeslos.slo.koordinator.sh"},
    "spec": {
        "group": "slo.koordinator.sh",
        "names": {"kind": "NodeSLO", "plural": "nodeslos", "singular": "nodeslo"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
