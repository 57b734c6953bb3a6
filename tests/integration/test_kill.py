"""SIGKILL of the proxy during hundreds of concurrent creations of containers."""

from __future__ import annotations

import collections
import contextlib
import threading
from concurrent import futures

import grpc

from agent.proto import cri_pb2 as pb
from tests.fixtures.pods import PodSpec, create_request, run_sandbox
from tests.integration.harness import TestNode
from tests.integration.service_manager import ServiceManager
from tests.waiting import DEADLINE_SECONDS, eventually

PODS = {"lse": ("LSE", "1"), "ls": ("LS", "0"), "ls-2": ("LS", "0"), "be": ("BE", "0")}
"""The QoS class and the final CPUs of the containers, by pod name."""
CONTAINERS = 125
"""Containers of each pod, all created at once."""
KILLED_AFTER = (1, 100, 250, 400)
"""The proxy is killed when so many containers have been created."""
CALL_SECONDS = 2 * DEADLINE_SECONDS
RETRY_SECONDS = 0.05
"""The pause after a failure, shorter than a kubelet's."""


class Kubelet:
    """Creates containers as a kubelet does. After a failure it lists the runtime's containers, and
    repeats the creation only if the container does not exist."""

    def __init__(self, path: str) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.max_reconnect_backoff_ms", 100),
        ]
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)
        self._create = self._channel.unary_unary(
            "/runtime.v1.RuntimeService/CreateContainer",
            request_serializer=pb.CreateContainerRequest.SerializeToString,
            response_deserializer=pb.CreateContainerResponse.FromString,
        )
        self._list = self._channel.unary_unary(
            "/runtime.v1.RuntimeService/ListContainers",
            request_serializer=pb.ListContainersRequest.SerializeToString,
            response_deserializer=pb.ListContainersResponse.FromString,
        )
        self.created = 0
        self.failures: collections.Counter[grpc.StatusCode] = collections.Counter()
        self._lock = threading.Lock()
        self._retry = threading.Event()

    def create(self, request: pb.CreateContainerRequest) -> str:
        """Creates the container; its id."""
        while True:
            try:
                created = self._create(request, timeout=CALL_SECONDS).container_id
                return self._done(created)
            except grpc.RpcError as error:
                with self._lock:
                    self.failures[error.code()] += 1  # type: ignore[attr-defined]
            self._retry.wait(RETRY_SECONDS)
            with contextlib.suppress(grpc.RpcError):
                for each in self._containers_of(request.pod_sandbox_id):
                    if each.metadata == request.config.metadata:
                        return self._done(each.id)

    def close(self) -> None:
        self._channel.close()

    def _done(self, container_id: str) -> str:
        with self._lock:
            self.created += 1
        return container_id

    def _containers_of(self, sandbox_id: str) -> list[pb.Container]:
        wanted = pb.ContainerFilter(pod_sandbox_id=sandbox_id)
        request = pb.ListContainersRequest(filter=wanted)
        return list(self._list(request, timeout=CALL_SECONDS).containers)


def test_every_container_is_created_once_on_its_cpus(
    node: TestNode, service_manager: ServiceManager
) -> None:
    node.start_agent()
    service_manager.start()
    requests: dict[tuple[str, str], pb.CreateContainerRequest] = {}
    wanted_cpus = {}
    for name, (qos, cpus) in PODS.items():
        spec: PodSpec = node.spec(name, qos, cpus if qos == "LSE" else "")
        sandbox = run_sandbox(node.proxied, spec)
        wanted_cpus[sandbox] = cpus
        for number in range(CONTAINERS):
            container = f"c{number}"
            requests[sandbox, container] = create_request(spec, sandbox, container)

    with (
        contextlib.closing(Kubelet(node.cri_socket)) as kubelet,
        futures.ThreadPoolExecutor(len(requests)) as pool,
    ):
        created = {name: pool.submit(kubelet.create, each) for name, each in requests.items()}
        for count in KILLED_AFTER:
            eventually(
                f"{count} containers are created",
                lambda it=count: kubelet.created >= it,
                2 * CALL_SECONDS,
            )
            service_manager.kill()
            service_manager.start()
        ids = {name: each.result(2 * CALL_SECONDS) for name, each in created.items()}
        assert kubelet.failures[grpc.StatusCode.UNAVAILABLE], "no kill interrupted a call"

    existing = [(each.sandbox_id, each.name, each.id) for each in node.direct.containers()]
    assert sorted(existing) == sorted((*name, each) for name, each in ids.items())
    cpus = collections.Counter(
        (wanted_cpus[sandbox], node.direct.container_status(container).resources.cpuset)
        for (sandbox, _), container in ids.items()
    )
    assert cpus == {("0", "0"): 3 * CONTAINERS, ("1", "1"): CONTAINERS}
    assert node.metric("topolet_cpu_overlaps_total") == 0
