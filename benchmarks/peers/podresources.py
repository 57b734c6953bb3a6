"""A kubelet's PodResources API for benchmarks: that of the tests, on a real gRPC server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from peers.packages import imported

MIB = 1 << 20


@contextmanager
def serving(path: Path, pods: Sequence[str]) -> Iterator[Callable[[], int]]:
    """Serves pods of `default` that each hold memory; yields a function that returns the number of
    requests. Raises NoPackageError."""
    imported("grpcio", ("grpc",))
    from agent.proto import podresources_pb2 as pb
    from tests.kubelet import fake_kubelet

    kubelet = fake_kubelet.FakeKubelet()
    memory = [fake_kubelet.memory("memory", 32 * MIB, 0)]
    kubelet.set_pods(
        *(
            pb.PodResources(
                name=name,
                namespace="default",
                containers=[pb.ContainerResources(name="main", memory=memory)],
            )
            for name in pods
        )
    )
    kubelet.answers["GetAllocatableResources"] = pb.AllocatableResourcesResponse(
        cpu_ids=[0, 1], memory=[fake_kubelet.memory("memory", 8192 * MIB, 0)]
    )
    with fake_kubelet.serving(path, kubelet):
        yield lambda: kubelet.call_count("List")
