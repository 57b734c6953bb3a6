"""The explanation of an offered resource."""

from __future__ import annotations

import json

from agent.usage.batch_mid import Offer, OfferedResource, Term
from agent.usage.offered import Offered
from agent.view.offered import as_json, as_text, explained

TERMS = (
    Term("capacity", 64_000),
    Term("free by strategy", -25_600),
    Term("used by prod and mid pods", -13_000),
)
OFFERED = Offered(
    100.0,
    (
        OfferedResource("kubernetes.io/batch-cpu", 19_000, Offer(TERMS, 19_200), 19_000),
        OfferedResource("kubernetes.io/mid-memory", 0, Offer(()), 0),
    ),
)


def test_a_line_for_each_term() -> None:
    shown = explained(OFFERED, "batch-cpu", 140.0)
    assert shown is not None
    assert as_text(shown).splitlines() == [
        "Node's kubernetes.io/batch-cpu: 19000 milli-CPU, computed 40 s ago",
        "  capacity                    64000",
        "  free by strategy           -25600",
        "  used by prod and mid pods  -13000",
        "  sum, at least 0             25400",
        "  at most, by strategy        19200",
        "  offered, in steps           19000",
    ]
    assert json.loads(as_json(shown))["resource"]["offer"]["limit"] == 19_200


def test_normalization_third_parties_and_numa_nodes_have_lines_of_their_own() -> None:
    offer = Offer(TERMS, 19_200, 9600)
    shared = OfferedResource("kubernetes.io/batch-cpu", 18_500, offer, 28_500, 10_000)
    zones = {0: {shared.name: 12_000, "kubernetes.io/batch-memory": 5}, 1: {shared.name: 500}}
    shown = explained(Offered(100.0, (shared,), zones), "batch-cpu", 140.0)
    assert shown is not None
    assert as_text(shown).splitlines()[-8:] == [
        "  sum, at least 0             25400",
        "  at most, by strategy        19200",
        "  CPU normalization            9600",
        "  in steps                    28500",
        "  third-party allocations    -10000",
        "  offered, at least 0         18500",
        "  of that on NUMA node 0      12000",
        "  of that on NUMA node 1        500",
    ]


def test_names_have_a_domain_or_none() -> None:
    shown = explained(OFFERED, "kubernetes.io/mid-memory", 100.0)
    assert shown is not None
    assert "0 bytes" in as_text(shown)
    assert explained(OFFERED, "batch-memory", 100.0) is None
