"""The states of nodes are numbered before a request needs the numbers."""

from __future__ import annotations

import threading
import time

from agent.allocate.node_allocator.node_states import NodeStates
from agent.model.pod_request import Reads
from agent.scheduler.extender.equivalence_cache import StateNumbering
from agent.scheduler.state.cluster import SchedulerCache
from agent.scheduler.state.pod_info import Feasible, PodRequirements, RequirementsCheck
from tests.fixtures.fleet import CARDS, EIGHT, SMALL, gpu_pod, guaranteed_pod, owner
from tests.scheduler import clusters

MODELS = {"a": SMALL, "b": SMALL, "c": CARDS, "d": EIGHT}
KINDS = (owner(2, 2), gpu_pod(1), guaranteed_pod("1", "1Gi"))


class CountedStates(NodeStates):
    """Counts the states that were numbered."""

    def __init__(self, seconds_each: float = 0.0) -> None:
        super().__init__()
        self.numbered = 0
        self.first = threading.Event()
        self._seconds = seconds_each

    def of(self, of_properties: int, state: tuple[object, ...], reads: Reads) -> int:
        self.numbered += 1
        self.first.set()
        time.sleep(self._seconds)
        return super().of(of_properties, state, reads)


def numbered_by_requests(cluster: SchedulerCache, states: CountedStates) -> int:
    """The number of states that are numbered while pods of all kinds are checked on all nodes."""
    before = states.numbered
    for kind in KINDS:
        check = RequirementsCheck(cluster, PodRequirements(clusters.pod_request(kind)))
        results = [check.run(name, {}) for name in MODELS]
        assert any(isinstance(each, Feasible) for each in results)
    return states.numbered - before


def test_a_request_does_not_number_nodes_that_have_not_changed() -> None:
    cluster = clusters.cluster(MODELS)
    cluster.node_states = states = CountedStates()
    numbering = StateNumbering(cluster)
    numbering.step()
    assert numbered_by_requests(cluster, states) == 0
    assert clusters.reserve(cluster, owner(2, 2), "a")
    assert numbered_by_requests(cluster, states) > 0
    assert cluster.release("uid-p")
    numbering.step()
    assert numbered_by_requests(cluster, states) == 0


def test_nodes_that_have_not_changed_are_not_numbered_again() -> None:
    cluster = clusters.cluster(MODELS)
    cluster.node_states = states = CountedStates()
    numbering = StateNumbering(cluster)
    numbering.step()
    of_all_nodes = states.numbered
    numbering.step()
    assert states.numbered == of_all_nodes
    assert clusters.reserve(cluster, owner(2, 2), "a")
    clusters.remove_node(cluster, "b")
    numbering.step()
    assert of_all_nodes < states.numbered <= of_all_nodes + len(Reads)


def test_the_lock_is_released_between_nodes() -> None:
    """A node takes longer here than the lock is held at a time."""
    cluster = clusters.cluster({f"node-{number}": SMALL for number in range(30)})
    cluster.node_states = states = CountedStates(seconds_each=0.002)
    numbering = threading.Thread(target=StateNumbering(cluster).step)
    numbering.start()
    assert states.first.wait(10)
    with cluster.lock:
        before_the_end = states.numbered
    numbering.join(60)
    assert before_the_end < states.numbered
