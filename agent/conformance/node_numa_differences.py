"""Where ours gives other answers than Koordinator's NodeNUMAResource on purpose.

Each is a rule of theirs that is wrong, as what it does to a case, to the account or to the answer:
a case is declared only if ours under that rule answers exactly what they did.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from agent.conformance import node_numa_looks as looks
from agent.conformance.node_numa_looks import Case
from agent.conformance.verdict import Difference


class Quirk(msgspec.Struct, frozen=True):
    """`applies`: whether the case is one that the rule is about. `case`: what it makes of it.
    `recorded_only`: a RecordedAccount; `unpaid`, `by_position`, `unbound`: TheirTrials.
    `unaccounted`: no amounts of NUMA nodes are written. `unamplified`: the score knows no ratio.
    `refused`: every pod is, with that code."""

    difference: Difference
    applies: Callable[[Case], bool]
    case: Callable[[Case], Case] = looks.as_it_is
    recorded_only: bool = False
    unpaid: bool = False
    by_position: bool = False
    unbound: bool = False
    unaccounted: bool = False
    unamplified: bool = False
    refused: str = ""


QUIRKS: Final = (
    Quirk(
        Difference(
            "policy-spellings",
            "of the spellings of a topology manager policy three are read; ours reads all",
            listed=True,
        ),
        looks.spelled,
        case=looks.without_policies,
    ),
    Quirk(
        Difference(
            "one-numa-node",
            "SingleNUMANode on a machine of one NUMA node accounts for nothing; ours accounts",
            listed=True,
        ),
        looks.single_machine,
        unaccounted=True,
    ),
    Quirk(
        Difference(
            "be-owns-cpus",
            "where the node binds CPUs BE pods own some too; ours leave them on what is left",
            listed=True,
        ),
        looks.be_bound,
        case=looks.as_ls,
    ),
    Quirk(
        Difference(
            "split-by-position",
            "an amount is split over NUMA nodes by what others of them have; ours goes by the "
            "nodes themselves",
            listed=True,
        ),
        looks.split,
        by_position=True,
    ),
    Quirk(
        Difference(
            "amplified-without-topology",
            "where CPU is amplified and no CPU topology is reported, no pod that asks for CPU "
            "comes; ours counts what pods own",
        ),
        looks.amplified_blindly,
        refused="UnschedulableAndUnresolvable",
    ),
    Quirk(
        Difference(
            "amplified-before-conflict",
            "a pod whose bind policy conflicts with the node's is told first that amplified CPU "
            "is lacking, as if evicting pods could help; ours names the conflict",
        ),
        looks.amplified_conflict,
        case=partial(looks.unsaid, word=looks.REQUIRED),
    ),
    Quirk(
        Difference(
            "exclusive-unheard",
            "the exclusive policy of a pod whose CPUs only the node binds is not heard; ours hears "
            "whoever has one",
        ),
        looks.exclusive,
        case=partial(looks.unsaid, word=looks.EXCLUSIVE),
    ),
    Quirk(
        Difference(
            "claims-without-topology",
            "on a node that reports no CPU topology what pods hold of NUMA nodes is forgotten; "
            "ours counts it",
        ),
        looks.no_cpus,
        case=looks.forgotten,
    ),
    Quirk(
        Difference(
            "owned-without-amounts",
            "CPUs that a pod owns without recorded amounts are not gone from their NUMA node; "
            "with ours they are",
        ),
        looks.unrecorded,
        recorded_only=True,
    ),
    Quirk(
        Difference(
            "amplified-cpu-unpaid",
            "CPUs are bound in a NUMA node that has not so much amplified CPU left; ours binds as "
            "many as it can pay for",
        ),
        looks.amplified,
        unpaid=True,
    ),
    Quirk(
        Difference(
            "fitting-without-cpu",
            "for a pod that asks for no CPU NUMA nodes are compared by the CPUs that suit the "
            "policy by which the node binds others; ours compares what they have",
        ),
        looks.without_cpu,
        unbound=True,
    ),
    Quirk(
        Difference(
            "resource-not-in-zone",
            "a resource that a zone does not count but a pod recorded makes pods fail; ours does "
            "not take it for the NUMA nodes'",
            listed=True,
        ),
        looks.uncounted,
        case=looks.with_nothing,
    ),
    Quirk(
        Difference(
            "amplified-without-cpu",
            "a pod that asks for no CPU is scored as if CPU that others own were not amplified; "
            "ours counts the node as it is",
        ),
        looks.amplified_for_nothing,
        unamplified=True,
    ),
)
DIFFERENCES: Final = tuple(each.difference for each in QUIRKS)
