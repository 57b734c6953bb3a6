"""kube-scheduler chooses the best node of the extender, whatever its own plugins prefer."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import process
from tests.integration.kubescheduler.extender_server import serving
from tests.integration.kubescheduler.recorder import Recorder
from tests.integration.kubescheduler.schedulers import Topolet, install, shipped_configuration
from tests.integration.kubescheduler.workload import ONE_NODE, Workload, workload_for

BURST_SECONDS = 300.0
PLAIN_HTTP = ("--tls-dir=", "--client-ca-file=")
PODS = 1000


@pytest.mark.long
@pytest.mark.timeout(400)
def test_kube_scheduler_chooses_the_nodes_with_the_highest_extender_scores(
    apiserver: ApiServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each pod is bound to the node with the highest score in the extender's last response.
    Responses have all feasible nodes, so that the scores of kube-scheduler count too."""
    process.program_or_skip()
    install(apiserver)
    topolet = Topolet(apiserver, tmp_path, *PLAIN_HTTP, "--best-node-only=false")
    with contextlib.ExitStack() as stack:
        workload = stack.enter_context(workload_for(apiserver, request.node.name))
        recorder = Recorder(topolet.port, workload.name)
        url = stack.enter_context(serving(recorder.connected))
        for number in range(30):
            workload.nodes.add((2, 1, (16, 24, 32)[number % 3], 2))
        settings = shipped_configuration(apiserver, topolet.port)
        (extender,) = settings["extenders"]
        extender["urlPrefix"] = url
        del extender["enableHTTPS"], extender["tlsConfig"]
        try:
            topolet.start()
            with process.scheduling(apiserver, settings, tmp_path):
                create_pods(workload)
                workload.wait("all are bound", lambda: len(recorder.binds) == PODS, BURST_SECONDS)
        finally:
            topolet.kill()
    assert recorder.binds == recorder.choices
    assert len(recorder.binds) == PODS
    assert max(recorder.candidates.values()) == 30


def create_pods(workload: Workload) -> None:
    """All pods have requirements for Topolet: for others kube-scheduler alone chooses the nodes."""
    for number in range(PODS):
        name = f"p{number}"
        match number % 3:
            case 0:
                workload.create_pod(name, {"cpu": "2"}, "LSR")
            case 1:
                workload.create_pod(name, {"cpu": "3"}, "LS", ONE_NODE)
            case _:
                workload.create_pod(name, {"cpu": "500m"}, "LS")
