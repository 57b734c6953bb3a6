"""The one write that gives a pod its node: a Binding, whose annotations the API server copies to
the pod in the same step."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.kube.auth import AccessError
from agent.kube.errors import ConflictError, KubeError, NotFoundError, ServerError, UnreachableError
from agent.kube.kinds import pod_path
from agent.kube.transport import Transport
from agent.model import apipods
from agent.model.apipods import ApiPod
from agent.model.objects import ObjectError


class PodName(msgspec.Struct, frozen=True):
    """Whom to bind. Another pod of the same name has another `uid`, and is not meant."""

    namespace: str
    name: str
    uid: str

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"


class Outcome(msgspec.Struct, frozen=True):
    """`bound`: None where nobody knows yet. `error`: why it is not True."""

    bound: bool | None
    error: str = ""


class PodError(RuntimeError):
    """A pod can't be had; the message says why."""


class Bindings:
    """Any thread may ask."""

    def __init__(self, sending: Transport, looking: Transport | None = None) -> None:
        """`looking`: for looks at pods, which end sooner than a Binding may take."""
        self._sending = sending
        self._looking = looking or sending

    def bind(self, pod: PodName, node: str, annotations: Mapping[str, str]) -> Outcome:
        """One request; a second one looks at the pod where the first one's answer does not tell
        what has become of it."""
        try:
            self._sending.create(
                f"{pod_path(pod.namespace, pod.name)}/binding", _binding(pod, node, annotations)
            )
        except (ConflictError, ServerError, UnreachableError) as error:
            return self._looked(pod, node, annotations, error)
        except (KubeError, AccessError) as error:
            return Outcome(False, str(error))
        return Outcome(True)

    def pod(self, pod: PodName) -> ApiPod | None:
        """None where it is gone. Raises PodError."""
        try:
            found = apipods.decode(self._looking.get(pod_path(pod.namespace, pod.name)))
        except NotFoundError:
            return None
        except (KubeError, AccessError, ObjectError) as error:
            raise PodError(f"pod {pod.title}: {error}") from None
        return found if found.uid == pod.uid else None

    def _looked(
        self, pod: PodName, node: str, annotations: Mapping[str, str], error: KubeError
    ) -> Outcome:
        """What became of a Binding that was answered with `error`, if at all."""
        conflict = isinstance(error, ConflictError)
        try:
            found = self.pod(pod)
        except PodError as unknown:
            return Outcome(None, f"{error}; then {unknown}")
        if found is None:
            return Outcome(False, f"pod {pod.title} is gone")
        if not found.node:
            return Outcome(False if conflict else None, str(error))
        if found.node == node and annotations.items() <= found.annotations.items():
            return Outcome(True)
        return Outcome(False, f"pod {pod.title} is bound to node {found.node} by somebody else")


def _binding(pod: PodName, node: str, annotations: Mapping[str, str]) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod.name,
            "namespace": pod.namespace,
            "uid": pod.uid,
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
