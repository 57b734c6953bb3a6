"""The largest number of modules that a request enters: the first filter of an equivalence class
decides, and the next filter reads the cached result."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from agent.hooks.admission import Admission
from agent.hooks.agent_client import Notifier, SnapshotFile
from agent.hooks.cpuset import AssumedContainers
from agent.hooks.requests import DeviceFields
from agent.host import locks
from agent.model import snapshot
from agent.model.settings.frontends import Deadlines, ProxySettings, parse_policies
from agent.proxy.gate import CpusetGate
from agent.relay.gate import Call, GateVerdict, Replace
from agent.scheduler.extender.equivalence_cache import StateNumbering
from agent.scheduler.extender.extender import ExtenderArgs, ExtenderFilterResult
from tests.fixtures.fleet import owner
from tests.hooks.snapshots import BOOT, OWNED
from tests.proxy.harness import creation
from tests.scheduler.conftest import server as server
from tests.scheduler.conftest import transport as transport
from tests.scheduler.extender.scene import NODES, Scene
from tests.scheduler.extender.scene import scene as scene
from tests.structure.paths import calls, entered

CREATE_CONTAINER_MODULES = 8
FIRST_FILTER_MODULES = 12
CACHED_FILTER_MODULES = 5
ALLOCATOR = "agent.allocate.node_allocator.allocator"
ALLOCATOR_ENTRIES = 2
"""For each state of a node: the bound of its score, and the offer."""


def test_a_call_without_agent_code_enters_no_module() -> None:
    assert entered(lambda: None) == frozenset()


def test_create_container_of_an_owner(tmp_path: Path) -> None:
    """From the relay's call to the gate's verdict, which sets the pool as the cpuset."""
    snapshot_file = tmp_path / "snapshot.json"
    snapshot_file.write_bytes(snapshot.encode(OWNED))
    notifier = Notifier(str(tmp_path / "notifications.sock"))
    lock = locks.lock_for_relay(str(tmp_path))
    admission = Admission(
        SnapshotFile(str(snapshot_file), BOOT),
        notifier,
        AssumedContainers(lock.has_others),
        parse_policies(ProxySettings().hook_failure_policy),
        str(tmp_path),
        DeviceFields(),
    )
    gate = CpusetGate(admission, Deadlines(60.0))
    call = Call(b"/runtime.v1.RuntimeService/CreateContainer", time.monotonic())
    message = creation("p", "LS").SerializeToString()
    verdicts: list[GateVerdict] = []
    modules = entered(lambda: verdicts.append(gate.request(call, message)))
    notifier.close()
    lock.release()
    assert isinstance(verdicts[0], Replace)
    assert len(modules) <= CREATE_CONTAINER_MODULES, sorted(modules)


def test_filter_of_two_pods_that_need_the_same_cpus(scene: Scene) -> None:
    """On nodes of two models with numbered states. The equivalence cache has the results for the
    second pod."""
    StateNumbering(scene.cluster).step()
    counts = []
    for name in ("first", "next"):
        args = ExtenderArgs(scene.pod(owner(8, 8), name), NODES)
        results: list[ExtenderFilterResult] = []
        counts.append(entered(partial(_filter, scene, args, results)))
        assert results[0].node_names
    assert len(counts[0]) <= FIRST_FILTER_MODULES, sorted(counts[0])
    assert len(counts[1]) <= CACHED_FILTER_MODULES, sorted(counts[1])


def test_a_first_filter_enters_the_allocator_of_a_node_twice(scene: Scene) -> None:
    """The nodes a and b are in one state."""
    StateNumbering(scene.cluster).step()
    results: list[ExtenderFilterResult] = []
    args = ExtenderArgs(scene.pod(owner(8, 8), "first"), ["a", "b"])
    pairs = calls(partial(_filter, scene, args, results))
    assert sum(called == ALLOCATOR != caller for caller, called in pairs) == ALLOCATOR_ENTRIES
    assert results[0].node_names


def _filter(scene: Scene, args: ExtenderArgs, results: list[ExtenderFilterResult]) -> None:
    results.append(scene.handlers.filter(args))
