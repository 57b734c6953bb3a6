"""The agent's batch and mid resources, without an API server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.kube.errors import ForbiddenError, KubeError, ServerError, UnreachableError
from agent.model.nrt.node_annotations import CPU_NORMALIZATION_RATIO
from agent.model.pod.annotations import AnnotationError
from agent.model.pod.apiobjects import ApiNode
from agent.node.batch_resources import (
    EXPIRY_SECONDS,
    ORIGIN,
    SETTLE_SECONDS,
    STRATEGY,
    THIRD_PARTY,
    UPDATE_SECONDS,
    NodeOffers,
    StrategyError,
    strategy,
)
from agent.usage import OFFERED_FILE
from agent.usage.batch_mid import ColocationStrategy, NodeLoad, Zones

GIB = 1 << 30
BATCH_BYTES = 6 * GIB + GIB // 2
LOAD = NodeLoad(
    {"cpu": 10_000, "memory": 10 * GIB}, {}, {"cpu": 0, "memory": 0}, {}, {"cpu": 0, "memory": 0}
)
BATCH = {
    "kubernetes.io/batch-cpu": 6000,
    "kubernetes.io/batch-memory": BATCH_BYTES,
    "kubernetes.io/mid-cpu": 0,
    "kubernetes.io/mid-memory": 0,
}


class Host:
    """A node whose NodeMetric, load and time are set; it counts changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stored: dict[str, Any] | None = None
        self.error: KubeError | None = None
        self.loaded: tuple[ApiNode, NodeLoad] | None = ApiNode(), LOAD
        self.seconds = 1000.0
        self.wall_ahead = 0.0
        self.changes = 0
        self.batch = self.restarted()

    def get(self, kind: str, name: str, *, cached: bool = False) -> dict[str, Any] | None:
        assert (kind, name) == ("NodeMetric", "n")
        if self.error is not None:
            raise self.error
        return self.stored

    def changed(self) -> None:
        self.changes += 1

    def restarted(self) -> NodeOffers:
        return NodeOffers(
            self,  # type: ignore[arg-type]
            "n",
            lambda: self.loaded,
            str(self.folder / OFFERED_FILE),
            self.changed,
            lambda: self.seconds + self.wall_ahead,
            lambda: self.seconds,
        )

    def passed(self, seconds: float) -> dict[str, int]:
        self.seconds += seconds
        self.batch.step()
        return dict(self.batch.resources())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_amounts_are_offered_until_a_manager_gives_a_policy(host: Host) -> None:
    host.stored = {"metadata": {"name": "n"}, "spec": {}}
    assert host.passed(0) == BATCH
    host.stored = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}}
    assert host.passed(UPDATE_SECONDS - 1) == BATCH
    assert host.passed(1) == {}
    assert host.changes == 2
    host.stored = None
    assert host.passed(UPDATE_SECONDS) == BATCH


def test_a_restarted_agent_goes_on_with_the_last_amounts(host: Host) -> None:
    assert host.passed(0) == BATCH
    host.batch, host.loaded = host.restarted(), None
    assert host.passed(5) == BATCH, "nothing is measured yet"
    assert host.passed(EXPIRY_SECONDS) == {}


def test_a_restarted_agent_keeps_the_amounts_until_it_has_samples(host: Host) -> None:
    assert host.passed(0) == BATCH
    host.loaded = ApiNode(), msgspec.structs.replace(LOAD, system={"cpu": 5000, "memory": 0})
    host.batch = host.restarted()
    assert host.passed(5) == BATCH
    assert host.passed(SETTLE_SECONDS - 5)["kubernetes.io/batch-cpu"] == 1000


def test_amounts_of_long_ago_are_not_offered_again(host: Host) -> None:
    assert host.passed(0) == BATCH
    host.seconds += EXPIRY_SECONDS
    assert host.restarted().resources() == {}


@pytest.mark.parametrize("set_by", [-86_400.0, 86_400.0])
def test_a_clock_that_is_set_withdraws_nothing(host: Host, set_by: float) -> None:
    assert host.passed(0) == BATCH
    host.wall_ahead, host.loaded = set_by, None
    assert host.passed(UPDATE_SECONDS) == BATCH
    assert host.passed(EXPIRY_SECONDS) == {}


def test_a_clock_that_was_set_back_before_a_restart_withdraws_nothing(host: Host) -> None:
    assert host.passed(0) == BATCH
    host.wall_ahead, host.loaded = -86_400.0, None
    host.batch = host.restarted()
    assert host.passed(5) == BATCH
    assert host.passed(EXPIRY_SECONDS) == {}


def test_an_outage_of_the_server_withdraws_nothing(host: Host) -> None:
    assert host.passed(0) == BATCH
    host.error = UnreachableError("GET: connection refused")
    assert host.passed(UPDATE_SECONDS) == host.passed(2 * EXPIRY_SECONDS) == BATCH
    host.error, host.loaded = None, None
    assert host.passed(5) == BATCH, "the pods are not listed again yet"
    host.error = ForbiddenError("GET: 403")
    assert host.passed(EXPIRY_SECONDS) == {}, "others can be written"


def test_a_node_whose_annotation_switches_it_off_offers_nothing(host: Host) -> None:
    assert host.passed(0) == BATCH
    host.loaded = ApiNode(annotations={STRATEGY: '{"enable": false}'}), LOAD
    assert host.passed(UPDATE_SECONDS) == {}


def shared(cpu: object = "2500", priority: str = "koord-batch") -> dict[str, str]:
    """The annotation of a Node on which YARN took so much CPU, and 1 GiB."""
    resources = {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": "1Gi"}
    yarn = {"name": "hadoop-yarn", "priority": priority, "resources": resources}
    return {THIRD_PARTY: json.dumps({"allocations": [yarn]})}


def test_other_systems_take_their_part_and_see_the_whole(host: Host) -> None:
    host.loaded = ApiNode(annotations=shared()), LOAD
    batch = {"kubernetes.io/batch-cpu": 3500, "kubernetes.io/batch-memory": BATCH_BYTES - GIB}
    assert host.passed(0) == {**BATCH, **batch}
    origin = json.loads(host.batch.reported().annotations[ORIGIN])["resources"]
    assert {name: int(amount) for name, amount in origin.items()} == {
        name: BATCH[name] for name in batch
    }
    host.loaded = ApiNode(annotations=shared(priority="koord-mid")), LOAD
    assert host.passed(UPDATE_SECONDS) == BATCH
    assert host.batch.reported().annotations
    host.loaded = ApiNode(), LOAD
    assert host.passed(UPDATE_SECONDS) == BATCH
    assert not host.batch.reported().annotations


@pytest.mark.parametrize(
    ("annotations", "named"),
    [
        (shared("x"), r"allocations\[0\]\.resources\.kubernetes\.io/batch-cpu: 'x'"),
        (shared(-1), r"batch-cpu: -1 is not an amount"),
        (shared("9E"), r"batch-cpu: 9\d+ is not an amount"),
        ({THIRD_PARTY: "[]"}, r"Expected `object \| null`"),
        ({CPU_NORMALIZATION_RATIO: "fast"}, "'fast' is not a number"),
    ],
)
def test_a_bad_annotation_takes_nothing_and_is_named(
    host: Host, caplog: pytest.LogCaptureFixture, annotations: dict[str, str], named: str
) -> None:
    host.loaded = ApiNode(annotations=annotations), LOAD
    assert host.passed(0) == host.passed(UPDATE_SECONDS) == BATCH
    (record,) = caplog.records
    (key,) = annotations
    assert record.getMessage().startswith(f"batch and mid resources of Node n: annotation {key}: ")
    assert re.search(named, record.getMessage())


def test_fast_cpus_offer_more(host: Host) -> None:
    host.loaded = ApiNode(annotations={CPU_NORMALIZATION_RATIO: "1.5"}), LOAD
    assert host.passed(0) == {**BATCH, "kubernetes.io/batch-cpu": 9000}


def test_zones_have_0_of_what_their_node_no_longer_offers(host: Host) -> None:
    """Unless a manager writes them."""
    capacity = {node: {"cpu": 5000, "memory": 5 * GIB} for node in (0, 1)}
    of_zone = {"kubernetes.io/batch-cpu": 3000, "kubernetes.io/batch-memory": 3 * GIB}
    zones, nothing = (
        dict.fromkeys((0, 1), amounts) for amounts in (of_zone, dict.fromkeys(of_zone, 0))
    )
    on = ApiNode(), msgspec.structs.replace(LOAD, numa_capacity=capacity)
    off = ApiNode(annotations={STRATEGY: '{"enable": false}'}), on[1]

    def reported() -> Zones:
        return host.batch.reported().zones

    host.loaded = on
    assert (host.passed(0), reported()) == (BATCH, zones)
    host.loaded = off
    assert (host.passed(UPDATE_SECONDS), reported()) == ({}, nothing)
    host.batch = host.restarted()
    assert (host.passed(0), reported()) == ({}, nothing)
    host.loaded = on
    assert (host.passed(UPDATE_SECONDS), reported()) == (BATCH, zones)
    host.loaded = None
    assert (host.passed(EXPIRY_SECONDS), reported()) == ({}, nothing)
    host.stored = {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}}
    assert (host.passed(5), reported()) == ({}, {})


def test_errors_leave_the_amounts_for_some_time(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    assert host.passed(0) == BATCH
    host.error = ServerError("GET: 503")
    assert host.passed(UPDATE_SECONDS) == host.passed(5) == BATCH
    host.error = None
    host.loaded = ApiNode(annotations={STRATEGY: "{"}), LOAD
    assert host.passed(5) == host.passed(5) == BATCH
    server, annotation = [record.getMessage() for record in caplog.records]
    assert server.endswith("503; the last amounts stay")
    assert STRATEGY in annotation
    assert host.passed(EXPIRY_SECONDS) == {}


def test_a_file_that_cannot_be_read_is_named(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    (host.folder / OFFERED_FILE).write_text("{")
    assert host.restarted().resources() == {}
    assert str(host.folder / OFFERED_FILE) in caplog.text


def test_labels_override_the_annotation_of_a_node() -> None:
    text = '{"enable": true, "cpuReclaimThresholdPercent": 50, "midReclaimMode": "static"}'
    labels = {"node.koordinator.sh/cpu-reclaim-ratio": "0.7"}
    written = strategy(ApiNode(labels=labels, annotations={STRATEGY: text}))
    assert written.cpu_reclaim_threshold_percent == 70
    assert written.mid_reclaim_mode == "static"
    assert strategy(ApiNode()) == ColocationStrategy()


@pytest.mark.parametrize(
    ("labels", "annotation", "named"),
    [
        ({"node.koordinator.sh/cpu-reclaim-ratio": "x"}, "", "cpu-reclaim-ratio"),
        ({"node.koordinator.sh/cpu-reclaim-ratio": "nan"}, "", "cpu-reclaim-ratio"),
        ({"node.koordinator.sh/memory-reclaim-ratio": "1.5"}, "", "memory-reclaim-ratio"),
        ({}, '{"cpuReclaimThresholdPercent": 101}', "cpuReclaimThresholdPercent"),
        ({}, '{"cpuCalculatePolicy": "request"}', "cpuCalculatePolicy"),
    ],
)
def test_a_bad_strategy_is_named(labels: dict[str, str], annotation: str, named: str) -> None:
    with pytest.raises((AnnotationError, StrategyError), match=named):
        strategy(ApiNode(labels=labels, annotations={STRATEGY: annotation}))
