"""The kinds of objects that we touch, and where the API server has them."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.kube.errors import StoreError
from agent.kube.transport import segment


class Kind(msgspec.Struct, frozen=True):
    """`versions` are those that we speak, the best first. `must_exist`: others make such objects,
    we only add to them."""

    name: str
    group: str
    versions: tuple[str, ...]
    plural: str
    must_exist: bool = False


POD: Final = Kind("Pod", "", ("v1",), "pods", must_exist=True)
NODE: Final = Kind("Node", "", ("v1",), "nodes", must_exist=True)
TOPOLOGY: Final = Kind(
    "NodeResourceTopology",
    "topology.node.k8s.io",
    ("v1alpha2", "v1alpha1"),
    "noderesourcetopologies",
)
DEVICE: Final = Kind("Device", "scheduling.koordinator.sh", ("v1alpha1",), "devices")

_KINDS = {each.name: each for each in (NODE, TOPOLOGY, DEVICE)}


def kind_named(name: str) -> Kind:
    """One without namespaces. Raises StoreError."""
    kind = _KINDS.get(name)
    if kind is None:
        raise StoreError(f"{name}: no kind of ours, which are {', '.join(_KINDS)}")
    return kind


def path(group: str, version: str, plural: str = "", name: str = "") -> str:
    """Of a version of a group, a resource, or one object."""
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return "/".join([base, *([plural] if plural else []), *([segment(name)] if name else [])])


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"
