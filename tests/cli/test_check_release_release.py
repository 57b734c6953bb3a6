from __future__ import annotations

from typing import Any

import pytest

from agent.cli.check_release import ReleasePart, part_of


def daemon_set(generation: int = 2, strategy: str = "", **status: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "topolet-agent",
            "generation": generation,
            "labels": {"app.kubernetes.io/component": "agent"},
        },
        "spec": {"updateStrategy": {"type": strategy}} if strategy else {},
        "status": {"observedGeneration": 2, "desiredNumberScheduled": 3, **status},
    }


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (daemon_set(numberReady=3, updatedNumberScheduled=3), ""),
        (daemon_set(numberReady=2, updatedNumberScheduled=3), "2 of 3 pods are Ready"),
        (
            daemon_set(numberReady=3, updatedNumberScheduled=1),
            "1 of 3 pods have the version of the release",
        ),
        (daemon_set(strategy="OnDelete", numberReady=3), ""),
        (daemon_set(3, numberReady=3), "its controller has not seen its last change"),
    ],
)
def test_agents_are_ready_in_the_version_of_the_release(body: Any, problem: str) -> None:
    assert part_of("DaemonSet", body) == ReleasePart(
        "DaemonSet", "topolet-agent", 3, problem, agents=True
    )


def test_a_deployment_without_a_ready_pod_is_not_ready() -> None:
    body: dict[str, Any] = {
        "metadata": {"name": "topolet-scheduler", "generation": 1},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 1, "updatedReplicas": 2},
    }
    assert part_of("Deployment", body).problem == "0 of 2 pods are Ready"
    body["status"]["readyReplicas"] = 2
    assert part_of("Deployment", body) == ReleasePart("Deployment", "topolet-scheduler", 2, "")
    del body["status"]
    assert part_of("Deployment", body).problem == "its controller has not seen its last change"
