"""OOM scores: annotations of a pod say which of its processes the kernel kills first when the
memory of the node, or of a group above, is exhausted (Koordinator:
pkg/koordlet/runtimehooks/hooks, oomscoreadj).

A value below that of other pods makes the kernel kill these instead, and a pod's author writes the
annotation: so the operator says how low it may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.cgroup.hierarchy import OOM_SCORE_ADJ
from agent.model.pod.annotations import OOM_SCORES, OOM_SCORES_SPEC
from agent.node.colocation.moment import ColocatedPod, Moment
from agent.node.features import Key, WantedFiles

_MOST_NAMED: Final = 3


class OomScores:
    """The annotations `koordinator.sh/oom-score-adj` and `koordinator.sh/oom-score-adj-spec`.

    `least`: the lowest value that they may have."""

    name = "oom-score"

    def __init__(self, least: int) -> None:
        self._least = least

    def wanted(self, moment: Moment) -> WantedFiles:
        files: dict[Key, str] = {}
        refused: list[str] = []
        for pod in moment.pods:
            for name, score, key in _scores(pod):
                if score >= self._least:
                    files[pod.containers[name], OOM_SCORE_ADJ] = str(score)
                elif len(refused) < _MOST_NAMED:
                    refused.append(
                        f"pod {pod.title}: annotation {key}: the value {score} of container {name} "
                        f"is below oom-score-adj-min, which is {self._least}"
                    )
        return WantedFiles(files, "; ".join(refused))


def _scores(pod: ColocatedPod) -> Iterator[tuple[str, int, str]]:
    """The containers with a value, and the annotation that has it."""
    of_all, of_containers = pod.strategies.oom_score_adj, pod.strategies.oom_scores
    for name in pod.containers:
        if name in of_containers:
            yield name, of_containers[name], OOM_SCORES_SPEC
        elif of_all is not None:
            yield name, of_all, OOM_SCORES
