"""The scheduler is killed at every write of a rebind, on a real API server. The rebind ends with
the pods' old CPUs or with the new ones.

Pods a and b exchange CPUs, and one of them gets a free CPU in between. The rebind makes five
writes: the plan, one pod, the other pod, the first pod again, and the result."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from agent.model.cpu.cpuset import CpuSet
from agent.model.rebind_resource import time_text, unix_seconds
from tests.integration.apiserver.relay import KillingRelay, Moment, relaying
from tests.integration.apiserver.server import ApiServer
from tests.integration.incluster import QOS, STATUS, TOPOLOGY
from tests.integration.scheduling import NO_AGENT_PODS, REBINDS, Scheduler, write_kubeconfig
from tests.scheduler import objects
from tests.waiting import eventually

Object = dict[str, Any]

TIMEOUT_SECONDS = 60.0
NAME = "exchange"
PODS = f"/api/v1/namespaces/{NAME}/pods"
NODE = "n-exchange"
OLD = {"a": "0,4", "b": "1,5", "c": "2-3", "d": "6"}
WRITES = 5
DEADLINE_SECONDS = 600
"""A rebind's deadline, longer than a restart and the rebind take on a busy machine."""

pytestmark = pytest.mark.timeout(900)


class Exchange:
    """The node, its pods and its rebinds on the API server."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.rebinds = 0
        self.overlaps: list[Object] = []
        """The CPUs of the pods at the times when a CPU had two owners."""
        api.namespace(NAME)
        api.account(NAME, "default", [])
        api.node(NODE)
        status = {"status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110"}}}
        api.admin.merge(f"/api/v1/nodes/{NODE}/status", status)
        report = objects.topology(NODE)
        report["apiVersion"] = "topology.node.k8s.io/v1alpha2"
        api.admin.apply(TOPOLOGY + NODE, report)
        for name, cpus in OLD.items():
            self._pod(name, cpus)

    def _pod(self, name: str, cpus: str) -> None:
        amounts = {"cpu": str(len(CpuSet.parse(cpus))), "memory": "16Mi"}
        wanted = {"requests": amounts, "limits": amounts}
        metadata: Object = {"name": name, "labels": {QOS: "LSR"}}
        metadata["annotations"] = {STATUS: json.dumps({"cpuset": cpus})}
        spec: Object = {"nodeName": NODE, "automountServiceAccountToken": False}
        spec["containers"] = [{"name": "c", "image": "none", "resources": wanted}]
        self.api.create(PODS, {"metadata": metadata, "spec": spec})

    def reset(self) -> None:
        """Gives the pods their old CPUs."""
        for name, cpus in OLD.items():
            notes = {STATUS: json.dumps({"cpuset": cpus})}
            self.api.admin.merge(f"{PODS}/{name}", {"metadata": {"annotations": notes}})

    def cpus(self) -> dict[str, str]:
        found = {}
        for each in json.loads(self.api.admin.get(PODS))["items"]:
            status = json.loads(each["metadata"]["annotations"][STATUS])
            found[each["metadata"]["name"]] = status["cpuset"]
        return found

    def written(self) -> None:
        cpus = {name: CpuSet.parse(text) for name, text in self.cpus().items()}
        if any(cpus[one] & cpus[other] for one, other in combinations(cpus, 2)):
            self.overlaps.append({name: str(each) for name, each in cpus.items()})

    def rebind(self) -> str:
        """Creates a RebindResource; its name."""
        self.rebinds += 1
        name = f"{NAME}-{self.rebinds}"
        spec: Object = {"nodeName": NODE, "rebindAction": "RebindCPU"}
        spec["deadlineInSeconds"] = DEADLINE_SECONDS
        kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "RebindResource"}
        self.api.create(REBINDS, {**kind, "metadata": {"name": name}, "spec": spec})
        return name

    def status(self, name: str) -> Object:
        found: Object = json.loads(self.api.admin.get(f"{REBINDS}/{name}"))["status"]
        return found

    def planned_cpus(self, name: str) -> dict[str, str]:
        """The CPUs of the pods after the planned moves."""
        moves = self.status(name)["plan"]["moves"]
        assert len(moves) == 3
        last = {each["pod"].partition("/")[2]: json.loads(each["to"])["cpuset"] for each in moves}
        return OLD | last

    def wait_for_end(self, name: str) -> str:
        """Waits for the end of the rebind; its phase."""

        def has_ended() -> bool:
            shown = self.status(name)
            return "updateTimestamp" in shown and shown["phase"] != "Pending"

        eventually(f"{name} has ended", has_ended, TIMEOUT_SECONDS)
        return str(self.status(name)["phase"])

    def make_overdue(self, name: str) -> None:
        """Sets the start of the plan back so far that the deadline has passed."""
        plan = self.status(name).get("plan")
        if plan is None:
            return
        started = unix_seconds(plan["startedAt"])
        assert started is not None
        earlier = {"plan": {"startedAt": time_text(started - DEADLINE_SECONDS)}}
        self.api.admin.merge(f"{REBINDS}/{name}/status", {"status": earlier})


class Killer:
    """Starts and kills the scheduler."""

    def __init__(self, relay: KillingRelay, scheduler: Scheduler) -> None:
        self.relay = relay
        self.scheduler = scheduler

    def start(self) -> None:
        """Starts the scheduler without a lease, so that it is the leader at once."""
        self.scheduler.start(NO_AGENT_PODS, "--lease-seconds=0")

    def start_to_be_killed(self, number: int, moment: Moment) -> None:
        """Starts the scheduler and waits until it is killed at this write."""
        self.relay.arm(number, moment, lambda: self._kill())
        self.start()
        eventually(f"killed at write {number}", self.relay.killed.is_set, TIMEOUT_SECONDS)

    def end_of(self, exchange: Exchange, name: str) -> tuple[str, object]:
        """Starts the scheduler again; the phase and the CPUs at the end of the rebind."""
        self.start()
        phase = exchange.wait_for_end(name)
        self.scheduler.end(signal.SIGKILL)
        return phase, exchange.cpus()

    def _kill(self) -> None:
        self.scheduler.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def exchange(apiserver: ApiServer) -> Exchange:
    write_kubeconfig(apiserver, apiserver.folder / "exchange.kubeconfig")
    return Exchange(apiserver)


@pytest.fixture
def killer(apiserver: ApiServer, exchange: Exchange, tmp_path: Path) -> Iterator[Killer]:
    exchange.overlaps.clear()
    with relaying(apiserver, exchange.written) as relay:
        path = tmp_path / "kubeconfig"
        write_kubeconfig(apiserver, path, relay.url)
        with Scheduler(tmp_path, path) as scheduler:
            yield Killer(relay, scheduler)
    assert not exchange.overlaps, "a CPU had two owners"


@pytest.mark.parametrize("moment", Moment)
def test_killed_at_every_write_it_ends_in_the_new_state(
    exchange: Exchange, killer: Killer, moment: Moment
) -> None:
    for number in range(WRITES):
        exchange.reset()
        name = exchange.rebind()
        killer.start_to_be_killed(number, moment)
        found, wanted = killer.end_of(exchange, name), ("Succeed", exchange.planned_cpus(name))
        assert found == wanted, (number, killer.scheduler.log())


@pytest.mark.long
@pytest.mark.parametrize("moment", Moment)
def test_killed_at_every_write_and_overdue_it_ends_in_the_old_state(
    exchange: Exchange, killer: Killer, moment: Moment
) -> None:
    """Write 3 is the last move: after it there is nothing to undo."""
    for number in range(WRITES):
        exchange.reset()
        name = exchange.rebind()
        killer.start_to_be_killed(number, moment)
        exchange.make_overdue(name)
        found = killer.end_of(exchange, name)
        unplanned = number == 0 and moment is Moment.BEFORE
        moved = number > 3 or (number == 3 and moment is Moment.AFTER)
        wanted = ("Succeed", exchange.planned_cpus(name)) if unplanned or moved else ("Failed", OLD)
        assert found == wanted, (number, killer.scheduler.log())


@pytest.mark.long
@pytest.mark.parametrize("moment", Moment)
def test_killed_at_every_write_of_the_undoing_it_ends_in_the_old_state(
    exchange: Exchange, killer: Killer, moment: Moment
) -> None:
    """Two moves are made; the decision to undo them, two moves and the end are written."""
    for number in range(4):
        exchange.reset()
        name = exchange.rebind()
        killer.start_to_be_killed(3, Moment.BEFORE)
        exchange.make_overdue(name)
        killer.start_to_be_killed(number, moment)
        found = killer.end_of(exchange, name)
        assert found == ("Failed", OLD), (number, killer.scheduler.log())
