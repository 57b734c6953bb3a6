"""The place of a pod's containers, as text and as data."""

from __future__ import annotations

import json

import msgspec

from agent.model.linux_resources import LinuxResources
from agent.model.pod.qos import QoS
from agent.model.snapshot import PodWanted, Wanted
from agent.view import place
from tests.hooks.snapshots import EMPTY

FAR = "container wide runs on NUMA nodes 0-1, and its devices are near 1: its pool has no CPU there"
POD = PodWanted(
    "ns/card",
    QoS.LS,
    Wanted(LinuxResources("0-7")),
    {
        "near": Wanted(LinuxResources("4-7"), numa_nodes="1"),
        "wide": Wanted(LinuxResources("0-7"), numa_nodes="0-1"),
        "own": Wanted(LinuxResources("2-3"), exclusive=True, numa_nodes="0"),
        "kept": Wanted(),
        "mixed": Wanted(LinuxResources("2-7"), exclusive=True, shared="4-7"),
    },
    far={"wide": FAR},
)
SNAPSHOT = msgspec.structs.replace(EMPTY, pods={"u": POD})


def test_each_container_has_a_line_with_its_place_and_the_reason() -> None:
    shown = place.shown(SNAPSHOT, "ns/card")
    assert shown is not None
    assert place.as_text(shown).splitlines() == [
        "Pod ns/card on its node:",
        "  container kept: its CPUs are not Topolet's",
        "  container mixed: CPUs 2-3 of its own and 4-7 of its pool; it has no devices that are "
        "known here",
        "  container near: CPUs 4-7 on NUMA nodes 1; near to its devices",
        "  container own: CPUs 2-3 of its own on NUMA nodes 0; it has devices",
        f"  container wide: CPUs 0-7 on NUMA nodes 0-1; {FAR}",
        "  any other container: CPUs 0-7; it has no devices that are known here",
    ]
    printed = json.loads(place.as_json(shown))
    assert (printed["schema_version"], printed["pod"]) == (1, "ns/card")
    assert printed["containers"][4] == {
        "name": "wide",
        "cpus": "0-7",
        "numa_nodes": "0-1",
        "exclusive": False,
        "far": FAR,
        "shared": None,
    }


def test_a_pod_that_the_snapshot_does_not_have_has_no_place() -> None:
    assert place.shown(SNAPSHOT, "ns/other") is None
