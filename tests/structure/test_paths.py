"""The modules that one request enters, at most: the first of an equivalence class decides, the next
one reads the answer."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from agent.model.settings.failure_policy import CREATE
from agent.relay.gate import GateVerdict, Replace
from agent.scheduler.extender.equivalence_cache import StateNumbering
from agent.scheduler.extender.extender import ExtenderArgs, ExtenderFilterResult
from tests.fixtures.fleet import owner
from tests.kube import fake_api_server
from tests.proxy.harness import OWNED, GateHarness, creation
from tests.scheduler.conftest import server as server
from tests.scheduler.extender.scene import NODES, Scene
from tests.structure.paths import entered

CREATE_CONTAINER = 8
FILTER_OF_THE_FIRST = 15
FILTER_OF_THE_NEXT = 5


def test_a_lambda_enters_no_module() -> None:
    assert entered(lambda: None) == frozenset()


def test_create_container_of_an_owner(tmp_path: Path) -> None:
    """From the relay's call to the gate's verdict: the pool without the owner's CPU."""
    harness = GateHarness(tmp_path)
    harness.publish(OWNED)
    call = harness.new_call(CREATE, creation("p", "LS"))
    verdicts: list[GateVerdict] = []
    modules = entered(lambda: verdicts.append(harness.retry(call)))
    harness.close()
    assert isinstance(verdicts[0], Replace)
    assert len(modules) <= CREATE_CONTAINER, sorted(modules)


def test_filter_of_two_pods_that_need_the_same_cpus(server: fake_api_server.Server) -> None:
    """On nodes of two models, whose states have numbers, as the process gives them before a pod
    comes. For the second pod the equivalence cache has the answers."""
    scene = Scene(server)
    StateNumbering(scene.cluster).step()
    counts = []
    for name in ("first", "next"):
        args = ExtenderArgs(scene.pod(owner(8, 8), name), NODES)
        results: list[ExtenderFilterResult] = []
        counts.append(entered(partial(_filter, scene, args, results)))
        assert results[0].node_names
    scene.transport.close()
    assert len(counts[0]) <= FILTER_OF_THE_FIRST, sorted(counts[0])
    assert len(counts[1]) <= FILTER_OF_THE_NEXT, sorted(counts[1])


def _filter(scene: Scene, args: ExtenderArgs, results: list[ExtenderFilterResult]) -> None:
    results.append(scene.handlers.filter(args))
