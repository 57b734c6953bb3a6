"""Label selectors of Kubernetes, as annotations and objects carry them."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class Operator(enum.StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(msgspec.Struct, frozen=True):
    """One of `matchExpressions`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None


class LabelSelector(msgspec.Struct, frozen=True, rename="camel"):
    """Matches where all that it says holds; an empty one matches everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(
            labels.get(key) == value for key, value in (self.match_labels or {}).items()
        ) and all(each.matches(labels) for each in self.match_expressions or ())
