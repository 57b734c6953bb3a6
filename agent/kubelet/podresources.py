"""The kubelet's PodResources API (v1, ../../protos/podresources.proto), which it serves on a unix
socket of its node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from agent.kubelet import podmessages
from agent.kubelet.podmessages import FieldError
from agent.model.podresources import Allocatable, PodResources
from agent.model.verdict import Code
from agent.proto import podresources_pb2 as pb
from agent.rpc.channel import Channel
from agent.rpc.grpc import NO_ANSWER, RpcError

MAX_REPLY_BYTES: Final = 16 << 20
"""More than any node's pods need, and the limit of other clients (resource-topology-exporter:
pkg/podres/client.go, DefaultMaxMsgSize)."""

SERVICE: Final = "v1.PodResourcesLister"

Reply = TypeVar("Reply", bound=Message)
Value = TypeVar("Value")


class PodResourcesError(Exception):
    """A question that got no good answer; the message names socket and method."""

    def __init__(self, socket: str, method: str, reason: str) -> None:
        super().__init__(f"{socket}: {method}: {reason}")
        self.socket = socket
        self.method = method
        self.reason = reason


class NobodyAnswersError(PodResourcesError):
    """The kubelet does not run, is starting, or does not answer in time."""


class NotServedError(PodResourcesError):
    """This kubelet does not have the method, or it is off by a feature gate."""


class RateLimitError(PodResourcesError):
    """All clients of the kubelet together ask more often than it lets them."""


class MalformedPodResourcesError(PodResourcesError):
    """The answer can't be right; the message names pod, container and field too."""


class PodResourcesClient:
    """Safe for threads; every method raises PodResourcesError."""

    def __init__(self, socket_path: str, timeout_seconds: float = 10.0) -> None:
        self._path = socket_path
        self._timeout_seconds = timeout_seconds
        self._channel = Channel(socket_path, MAX_REPLY_BYTES)

    def pods(self) -> tuple[PodResources, ...]:
        """The kubelet's pods by name, also those that hold nothing; before 1.34 ended ones too."""
        request, kind = pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse
        return self._ask("List", request, kind, podmessages.pods)

    def allocatable(self) -> Allocatable:
        """What the kubelet could give."""
        request, kind = pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
        return self._ask("GetAllocatableResources", request, kind, podmessages.allocatable)

    def pod(self, namespace: str, name: str) -> PodResources | None:
        """One pod; None where the kubelet has none of that name."""
        request = pb.GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)

        def read(reply: pb.GetPodResourcesResponse) -> PodResources:
            told = podmessages.pod(reply.pod_resources)
            if told.key != (namespace, name):
                text = f"the answer is of {told.namespace}/{told.name}"
                raise FieldError(f"pod {namespace}/{name}: {text}")
            return told

        try:
            return self._ask("Get", request, pb.GetPodResourcesResponse, read)
        except _NotFoundError:
            return None

    def close(self) -> None:
        """Closes the connection; a later call opens it again."""
        self._channel.close()

    def _ask(
        self, method: str, request: Message, kind: type[Reply], read: Callable[[Reply], Value]
    ) -> Value:
        path = f"/{SERVICE}/{method}"
        try:
            raw = self._channel.call(path, request.SerializeToString(), self._timeout_seconds)
            return read(kind.FromString(raw))
        except RpcError as error:
            raise _told(error)(self._path, method, str(error)) from None
        except DecodeError as error:
            text = f"the reply is no {kind.__name__}: {error}"
            raise MalformedPodResourcesError(self._path, method, text) from None
        except FieldError as error:
            raise MalformedPodResourcesError(self._path, method, str(error)) from None


class _NotFoundError(PodResourcesError):
    pass


def _told(error: RpcError) -> type[PodResourcesError]:
    """The kubelet says in words, and as UNKNOWN, that a pod is not there or a gate is off."""
    if error.code in NO_ANSWER:
        return NobodyAnswersError
    if error.code == Code.UNIMPLEMENTED:
        return NotServedError
    if error.code == Code.RESOURCE_EXHAUSTED and "rate limit" in error.message:
        return RateLimitError
    if error.code == Code.UNKNOWN and error.message.endswith("disabled"):
        return NotServedError
    if error.code in (Code.UNKNOWN, Code.NOT_FOUND) and error.message.endswith("not found"):
        return _NotFoundError
    return PodResourcesError
