"""Which values of a node's label a pod admits, by its node selector and its required node affinity.

Only what limits the label to a list of values counts: selectors, and expressions with the operator
In. Other expressions, such as NotIn and Gt, admit any value here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
"""The label of a node with the model of its GPUs."""
MAX_VALUES: Final = 64
"""Values that are kept of a pod. An affinity may list thousands, and the scheduler keeps the values
for each kind of pods."""
_LABEL_CHARACTERS: Final = 63
"""The longest value of a label (Kubernetes: validation.LabelValueMaxLength)."""


class _Expression(msgspec.Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    match_expressions: tuple[_Expression, ...] | None = None


class _Terms(msgspec.Struct, frozen=True, rename="camel"):
    node_selector_terms: tuple[_Term, ...] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    required: _Terms | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinity(msgspec.Struct, frozen=True, rename="camel"):
    """`spec.affinity`; only the part about nodes."""

    node_affinity: _NodeAffinity | None = None


def admitted_values(
    label: str, selector: Mapping[str, str] | None, affinity: PodAffinity | None
) -> tuple[str, ...]:
    """The admitted values, sorted; empty: any value, also if there are more than MAX_VALUES. The
    node selector alone decides if it names the label: a pod whose affinity excludes that value fits
    no node in any case."""
    required = affinity.node_affinity.required if affinity and affinity.node_affinity else None
    terms = [_of_term(label, each) for each in (required and required.node_selector_terms) or ()]
    found: frozenset[str] = frozenset()
    if terms and all(each is not None for each in terms):
        found = frozenset().union(*(each for each in terms if each is not None))
    if selector and label in selector:
        found = frozenset((selector[label],))
    possible = [each for each in found if len(each) <= _LABEL_CHARACTERS]
    return tuple(sorted(possible)) if len(possible) <= MAX_VALUES else ()


def _of_term(label: str, term: _Term) -> frozenset[str] | None:
    """The values that the term admits, None for any."""
    lists = [
        frozenset(expression.values or ())
        for expression in term.match_expressions or ()
        if expression.key == label and expression.operator == "In"
    ]
    return frozenset.intersection(*lists) if lists else None
