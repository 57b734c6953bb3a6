"""The agent's process: wires the parts, rounds on rings and by the clock, one HTTP port."""

from __future__ import annotations

import logging
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agent.cgroup.controllers import Controllers
from agent.cgroup.hierarchy import Hierarchy
from agent.cgroup.journal import Journal
from agent.discover.facts import DiscoveryError
from agent.host import malloc
from agent.host.boot import boot_id
from agent.host.ending import Ending
from agent.host.locks import Lock
from agent.kube.errors import StoreError
from agent.kubelet.statefile import StateFileError
from agent.model import settings as options
from agent.model.settings import Settings
from agent.node import local, reload, sight
from agent.node.beside import Beside
from agent.node.cluster import ClusterSide, objects_of
from agent.node.configured import NodeObject
from agent.node.devices import device_view
from agent.node.doorbell import Doorbell
from agent.node.events import Events, Source, rest
from agent.node.health import Health
from agent.node.kubelet import KubeletView
from agent.node.kubeletword import KubeletSays
from agent.node.look import Node, RoundError
from agent.node.machine import Machine
from agent.node.notices import Notices
from agent.node.observed import Observer
from agent.node.outbox import Pace
from agent.node.placement import Locator
from agent.node.podresources import PodResourcesView
from agent.node.publisher import Publisher
from agent.node.remembered import Memory
from agent.node.telling import Teller
from agent.rpc.grpc import RpcError
from agent.runtime.cri import Cri
from agent.telemetry.http import Answer, HttpServer
from agent.telemetry.metrics import AgentMetrics

if TYPE_CHECKING:
    from agent.node.corrected import CorrectedPodResources, Serve

log = logging.getLogger(__name__)

OPEN_FILES = 16_384
_PODS_CHANGED = frozenset({Source.TREE, Source.RUNTIME, Source.KUBELET})
"""What may come with something that the kubelet gave or took."""


class Door(Protocol):
    """A way into this process by which containers are asked about before they exist."""

    def start(self) -> None:
        """The doorbell can be rung now. Raises OSError."""
        ...

    def page(self) -> str:
        """What it counts, for /metrics."""
        ...

    def close(self) -> None:
        """Asks nobody to come any more, and ends what is under way."""
        ...


def run(
    settings: Settings,
    read_again: Callable[[], Settings],
    door: Door | None = None,
    serve: Serve | None = None,
    *,
    standalone: bool,
) -> None:
    """Until SIGTERM or SIGINT; leaves every cpuset as it is. SIGHUP reads the settings again.
    `serve`: how the corrected PodResources are served, None where nobody wants them.
    `standalone`: without a cluster. Raises LockedError, HttpError, CgroupError, SettingsError,
    ConfigurationError, StoreError or OSError when it can't start, OSError when its state folder is
    taken away."""
    malloc.one_arena()
    exclude = reload.excluded(settings)
    node_name = settings.node_name or os.uname().nodename
    objects = objects_of(settings, node_name, standalone=standalone)
    beside = Beside(settings)
    local.check_kubelet(settings)
    machine = Machine(settings.root)
    local_cpus = local.configured(settings, machine)
    _keep_files_open()
    os.makedirs(settings.state_dir, mode=0o755, exist_ok=True)
    state = Path(settings.state_dir)
    sight_policy = sight.policy(settings)
    sight.prepare(sight_policy)
    lock = Lock(str(state / "agent.lock"))
    hierarchy = Hierarchy(settings.cgroup_root, os.path.join(settings.root, "proc"))
    controllers = Controllers(settings.cgroup_root, hierarchy.handles)
    for missing in controllers.missing():
        log.warning("this machine has no %s controller: nothing is limited by it", missing)
    journal = Journal(state / "journal")
    for problem in journal.problems:
        log.error("%s", problem)
    cri = Cri(options.socket_path(settings.runtime_endpoint))
    teller = Teller(Cri(options.socket_path(settings.runtime_endpoint)))
    metrics = AgentMetrics()
    doorbell = Doorbell(str(state / "doorbell.sock"))
    pace = None if standalone else Pace(recheck_seconds=settings.recheck_seconds)
    cluster = ClusterSide(objects, node_name, metrics, doorbell.wake, pace)
    pod_resources = PodResourcesView(settings.pod_resources_socket, doorbell.wake)
    memory = Memory(str(state / "cluster.json"))
    devices = device_view(settings, doorbell.wake, memory.known.files)
    corrected = _corrected(settings, serve) if serve else None
    node = Node(
        machine=machine,
        cri=cri,
        observer=Observer(
            cri, Locator(hierarchy), requests=settings.cpu_policy != "none", grants=True
        ),
        hierarchy=hierarchy,
        controllers=controllers,
        journal=journal,
        kubelet=KubeletView(settings.kubelet_dir),
        assignments=cluster,
        memory=memory,
        node_object=NodeObject(node_name),
        beside=beside,
        publisher=Publisher(str(state / "snapshot.json"), boot_id()),
        reporter=cluster.reporter,
        kubelet_says=KubeletSays(pod_resources),
        metrics=metrics,
        teller=teller,
        local=local_cpus,
        notices=Notices(settings.state_dir),
        devices=devices,
        sight_policy=sight_policy,
        corrected=corrected,
        migrate_memory=settings.migrate_memory,
    )
    node.exclude = exclude
    health = Health(settings.period_seconds)
    pages = {
        "/metrics": lambda: Answer(200, _metrics(metrics, door), "text/plain; version=0.0.4"),
        "/healthz": health.alive,
        "/readyz": health.ready,
    }
    server = HttpServer(settings.http, pages) if settings.http else None
    events = Events(
        doorbell,
        hierarchy.path,
        settings.kubelet_dir,
        options.socket_path(settings.runtime_endpoint),
        cluster.news,
    )
    stopping = asked_to_reload = False

    def hang_up(number: int, frame: object) -> None:
        nonlocal asked_to_reload
        asked_to_reload = True
        doorbell.wake()

    def stop() -> None:
        nonlocal stopping
        stopping = True
        doorbell.wake()

    signal.signal(signal.SIGHUP, hang_up)
    with Ending(stop):
        cluster.start()
        if door:
            door.start()
        if corrected:
            corrected.start()
        log.info("agent looks at %s", settings.runtime_endpoint)
        next_round = resting = 0.0
        while not stopping:
            rings = doorbell.wait(next_round - time.monotonic(), resting)
            node.heard(rings)
            began = time.monotonic()
            sources = events.heard() | ({Source.RING} if rings else set())
            if not sources and began >= next_round:
                sources = {Source.CLOCK}
            for source in sources:
                metrics.wakes.labels(source.value).inc()
            if devices is not None and Source.HOTPLUG in sources:
                devices.look_again()
            if sources & _PODS_CHANGED:
                pod_resources.ask()
            if asked_to_reload:
                asked_to_reload = False
                settings = reload.reloaded(settings, read_again, node)
            healthy = _round(node, health, metrics)
            pause = events.pause(settings, healthy, sources, began)
            if node.again:
                pause = min(pause, settings.period_seconds)
            health.rest(pause)
            metrics.pause_seconds.set(pause)
            next_round = began + pause
            resting = rest(settings, time.monotonic() - began)
            if doorbell.lost():
                raise OSError(f"{settings.state_dir} was removed or given to another agent")
    if door:
        door.close()
    if corrected:
        corrected.close()
    events.close()
    cluster.close()
    pod_resources.close()
    if devices is not None:
        devices.close()
    doorbell.close()
    if server:
        server.close()
    teller.close()
    cri.close()
    hierarchy.close()
    lock.release()


def _corrected(settings: Settings, serve: Serve) -> CorrectedPodResources:
    from agent.node.corrected import CorrectedPodResources  # few nodes need it

    return CorrectedPodResources(options.socket_path(settings.pod_resources_socket), serve)


def _metrics(metrics: AgentMetrics, door: Door | None) -> str:
    return metrics.render() + (door.page() if door else "")


def _keep_files_open() -> None:
    """As many as we may: a pass reads the same few files of every container."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(OPEN_FILES, hard)), hard))


def _round(node: Node, health: Health, metrics: AgentMetrics) -> bool:
    health.begin()
    start = time.monotonic()
    error = ""
    try:
        node.look()
    except RpcError as failure:
        error = f"the runtime does not answer: {failure}"
    except (DiscoveryError, StateFileError, StoreError, RoundError, OSError) as failure:
        error = str(failure)
    except Exception as failure:  # the supervisor: a bad round must not be the last
        error = f"round failed: {failure!r}"
        if health.is_news(error):
            log.exception("round failed")
    else:
        metrics.look_seconds.observe(time.monotonic() - start)
    metrics.looks.labels("failed" if error else "ok").inc()
    health.end(error)
    return not error
