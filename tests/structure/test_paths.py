"""The largest number of modules that a request enters: the first filter of an equivalence class
decides, and the next filter reads the cached result."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agent.model.settings.frontends import CREATE
from agent.relay.gate import GateVerdict, Replace
from agent.scheduler.extender.equivalence_cache import StateNumbering
from agent.scheduler.extender.extender import ExtenderArgs, ExtenderFilterResult
from tests.fixtures.fleet import owner
from tests.hooks.snapshots import OWNED
from tests.kube import fake_api_server
from tests.proxy.harness import GateHarness, creation
from tests.scheduler.conftest import server as server
from tests.scheduler.extender.scene import NODES, Scene
from tests.structure.paths import calls, entered

CREATE_CONTAINER_MODULES = 7
FIRST_FILTER_MODULES = 12
CACHED_FILTER_MODULES = 5
ALLOCATOR = "agent.allocate.node_allocator.allocator"
ALLOCATOR_ENTRIES = 2
"""For each state of a node: the bound of its score, and the offer."""


def test_a_call_without_agent_code_enters_no_module() -> None:
    assert entered(lambda: None) == frozenset()


def test_create_container_of_an_owner(tmp_path: Path) -> None:
    """From the relay's call to the gate's verdict, which sets the pool as the cpuset."""
    harness = GateHarness(tmp_path)
    harness.publish(OWNED)
    call = harness.new_call(CREATE, creation("p", "LS"))
    verdicts: list[GateVerdict] = []
    modules = entered(lambda: verdicts.append(harness.retry(call)))
    harness.close()
    assert isinstance(verdicts[0], Replace)
    assert len(modules) <= CREATE_CONTAINER_MODULES, sorted(modules)


def test_filter_of_two_pods_that_need_the_same_cpus(server: fake_api_server.Server) -> None:
    """On nodes of two models with numbered states. The equivalence cache has the results for the
    second pod."""
    scene = Scene(server)
    StateNumbering(scene.cluster).step()
    counts = []
    for name in ("first", "next"):
        args = ExtenderArgs(scene.pod(owner(8, 8), name), NODES)
        results: list[ExtenderFilterResult] = []
        counts.append(entered(partial(_filter, scene, args, results)))
        assert results[0].node_names
    scene.transport.close()
    assert len(counts[0]) <= FIRST_FILTER_MODULES, sorted(counts[0])
    assert len(counts[1]) <= CACHED_FILTER_MODULES, sorted(counts[1])


def test_a_first_filter_enters_the_allocator_of_a_node_twice(
    server: fake_api_server.Server,
) -> None:
    """The nodes a and b are in one state."""
    scene = Scene(server)
    StateNumbering(scene.cluster).step()
    results: list[ExtenderFilterResult] = []
    args = ExtenderArgs(scene.pod(owner(8, 8), "first"), ["a", "b"])
    pairs = calls(partial(_filter, scene, args, results))
    scene.transport.close()
    assert sum(called == ALLOCATOR != caller for caller, called in pairs) == ALLOCATOR_ENTRIES
    assert results[0].node_names


def _filter(scene: Scene, args: ExtenderArgs, results: list[ExtenderFilterResult]) -> None:
    results.append(scene.handlers.filter(args))
