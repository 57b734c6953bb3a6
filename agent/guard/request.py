"""The container that the runtime asks the guard about, with its final values: those of the request,
as all plugins have adjusted them.

The field numbers are those of protos/nri.proto."""

from __future__ import annotations

from agent.guard import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

VISIBLE_DEVICES: Final = b"NVIDIA_VISIBLE_DEVICES"
CDI_ANNOTATIONS: Final = "cdi.k8s.io/"
CPU_CLAIM: Final = "cpu.topolet.io/claim="
CPU_CLAIM_VARIABLE: Final = b"TOPOLET_CLAIM_"
_MOUNTED: Final = "nvidia-container-devices"


class ValidatedContainer:
    """A container before its creation.

    `cpuset`: "" says that it has none, so that it may run on every CPU.
    `has_cpu_claim`: says whether it has CPUs of a ResourceClaim.
    `shares`: is 0 if the request does not say them.
    `nodes`: has the paths of its device nodes.
    `named`: has the texts in which it names devices."""

    __slots__ = (
        "annotations",
        "cgroup_parent",
        "cpuset",
        "has_cpu_claim",
        "labels",
        "name",
        "named",
        "namespace",
        "nodes",
        "pod",
        "shares",
        "uid",
    )

    def __init__(self, request: bytes) -> None:
        """`request`: an encoded ValidateContainerAdjustmentRequest. Raises ProtobufError."""
        pod = wire.message_at(request, 1)
        container = wire.message_at(request, 2)
        adjusted = wire.message_at(request, 3)
        self.namespace = wire.text(pod, 4)
        self.pod = wire.text(pod, 2)
        self.uid = wire.text(pod, 3) or f"{self.namespace}/{self.pod}"
        self.labels = wire.texts(pod, 5)
        self.annotations = wire.texts(pod, 6)
        self.cgroup_parent = wire.text(wire.message_at(pod, 8), 3)
        self.name = wire.text(container, 3)
        cpu = wire.message_at(container, 11, 3, 2)
        self.shares = wire.integer(wire.message_at(cpu, 1), 1)
        self.cpuset = wire.text(wire.message_at(adjusted, 6, 2, 2), 6) or wire.text(cpu, 6)
        self.nodes = _final(
            _texts(wire.messages(wire.message_at(container, 11), 2)),
            _texts(wire.messages(wire.message_at(adjusted, 6), 1)),
        )
        self.named = frozenset(_named(container, adjusted))
        self.has_cpu_claim = any(each.startswith(CPU_CLAIM) for each in self.named) or any(
            each.startswith(CPU_CLAIM_VARIABLE) for each in wire.messages(container, 8)
        )

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.pod}"


def _texts(items: Iterator[bytes]) -> Iterator[str]:
    """The first field of each message."""
    return (wire.text(each, 1) for each in items)


def _final(requested: Iterator[str], adjusted: Iterator[str]) -> frozenset[str]:
    """The names after an adjustment, in which `-NAME` removes one."""
    names = set(requested)
    changes = list(adjusted)
    names.difference_update(each[1:] for each in changes if each.startswith("-"))
    return frozenset(names | {each for each in changes if not each.startswith("-")})


def _named(container: bytes, adjusted: bytes) -> Iterator[str]:
    variables = dict(each.partition(b"=")[::2] for each in wire.messages(container, 8))
    visible = variables.get(VISIBLE_DEVICES, b"").decode(errors="replace")
    yield from wire.texts(adjusted, 4).get(VISIBLE_DEVICES.decode(), visible).split(",")
    for number, message in ((20, container), (8, adjusted)):
        yield from _texts(wire.messages(message, number))
    annotations = wire.texts(container, 6) | wire.texts(adjusted, 2)
    for key, value in annotations.items():
        if CDI_ANNOTATIONS in key and not key.startswith("-"):
            yield from value.split(",")
    mounts = _final(_texts(wire.messages(container, 9)), _texts(wire.messages(adjusted, 3)))
    for path in mounts:
        if _MOUNTED in path:
            yield path.rpartition("/")[2]
