"""PodDisruptionBudgets (policy/v1): how many more of the selected pods may be disrupted now."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from agent.kube.objects import Change, ChangeKind
from agent.model.objects import LabelSelector, ObjectIdentity, decoded

KIND: Final = "PodDisruptionBudget"
PLURAL: Final = "poddisruptionbudgets"
PATH: Final = f"/apis/policy/v1/{PLURAL}"


class Budget(msgspec.Struct, frozen=True):
    """`allowed`: how many more pods may be disrupted now. `disrupted`: the names of the pods whose
    disruption is allowed and counted already."""

    namespace: str
    name: str
    selector: LabelSelector | None = None
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()
    uid: str = ""

    @property
    def title(self) -> str:
        return f"{self.namespace}/{self.name}"

    def covers(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the disruption of a pod in the budget's namespace counts. An empty selector
        selects all pods (policy/v1), a missing one selects none."""
        return (
            self.selector is not None
            and name not in self.disrupted
            and self.selector.matches(labels)
        )


def read(text: bytes) -> Budget:
    """Raises ObjectError."""
    raw = decoded(text, KIND, _budgets)
    return Budget(
        raw.metadata.namespace,
        raw.metadata.name,
        raw.spec.selector,
        raw.status.disruptions_allowed,
        frozenset(raw.status.disrupted_pods or ()),
        raw.metadata.uid,
    )


class Budgets:
    """All budgets of the cluster. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_namespace: dict[str, dict[str, Budget]] = {}

    def changed(self, changes: Sequence[Change[Budget]]) -> None:
        """Applies the events of the watch."""
        with self._lock:
            for change in changes:
                budgets = dict(self._by_namespace.pop(change.key.namespace, {}))
                if change.kind is ChangeKind.DELETED:
                    budgets.pop(change.key.name, None)
                else:
                    budgets[change.key.name] = change.value
                if budgets:
                    self._by_namespace[change.key.namespace] = budgets

    def covering(self, namespace: str, name: str, labels: Mapping[str, str]) -> tuple[Budget, ...]:
        """The budgets that the disruption of that pod counts in."""
        with self._lock:
            budgets = self._by_namespace.get(namespace, {})
        return tuple(each for each in budgets.values() if each.covers(name, labels))


class _Spec(msgspec.Struct, frozen=True):
    selector: LabelSelector | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, object] | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectIdentity
    spec: _Spec = _Spec()
    status: _Status = _Status()


_budgets: Final = msgspec.json.Decoder(_Object)
