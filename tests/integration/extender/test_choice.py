"""kube-scheduler chooses the extender's first node, whatever its own plugins prefer."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.integration.apiserver.server import ApiServer
from tests.integration.kubescheduler import process, workload
from tests.integration.kubescheduler.extender_server import answering
from tests.integration.kubescheduler.recorder import Recorder
from tests.integration.kubescheduler.schedulers import Topolet, furnish, shipped
from tests.integration.kubescheduler.workload import ONE_NODE, Workload

BURST_SECONDS = 300.0
PLAIN_HTTP = ("--tls-certificate-file=", "--client-ca-file=")
PODS = 1000


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_thousand_choices(
    apiserver: ApiServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """For every pod: it is bound to the node with the highest score in the extender's last answer.
    All feasible nodes are in the answers, so that kube-scheduler's scores count too."""
    process.program_or_skip()
    furnish(apiserver)
    topolet = Topolet(apiserver, tmp_path, *PLAIN_HTTP, "--best-node-only=false")
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(workload.workload(apiserver, request.node.name))
        recorder = Recorder(topolet.port, here.name)
        url = stack.enter_context(answering(recorder.connected))
        for number in range(30):
            here.hosts.add((2, 1, (16, 24, 32)[number % 3], 2))
        settings = shipped(apiserver, topolet.port)
        (extender,) = settings["extenders"]
        extender["urlPrefix"] = url
        del extender["enableHTTPS"], extender["tlsConfig"]
        try:
            topolet.start()
            with process.scheduling(apiserver, settings, tmp_path):
                create_pods(here)
                here.wait("all are bound", lambda: len(recorder.binds) == PODS, BURST_SECONDS)
        finally:
            topolet.kill()
    assert recorder.binds == recorder.choices
    assert len(recorder.binds) == PODS
    assert max(recorder.candidates.values()) == 30


def create_pods(here: Workload) -> None:
    """Pods without requirements for Topolet are not among them: kube-scheduler alone chooses their
    nodes."""
    for number in range(PODS):
        name = f"p{number}"
        match number % 3:
            case 0:
                here.ask(name, {"cpu": "2"}, "LSR")
            case 1:
                here.ask(name, {"cpu": "3"}, "LS", ONE_NODE)
            case _:
                here.ask(name, {"cpu": "500m"}, "LS")
