"""The text of `topolet doctor`; tests/integration/test_doctor.py has the command on a node."""

from __future__ import annotations

from agent.cli.doctor import described
from agent.model.pod.qos import QoS
from agent.node import drift, node_findings
from agent.node.doctor import Examination, Facts
from agent.node.drift import ObservedContainer
from agent.node.node_findings import NodeCode

HOSTILE = "\x1b[31m\r\u202e\u2028x"


def test_names_of_a_runtime_do_not_act_on_the_terminal() -> None:
    seen = (ObservedContainer("u", f"ns/{HOSTILE} c", QoS.LS, problem=f"annotation {HOSTILE}"),)
    examined = Examination(
        node_findings.found({NodeCode.RUNTIME: f"it answers {HOSTILE}"}),
        seen,
        drift.findings(seen, ()),
        Facts(runtime=HOSTILE),
    )
    for each in (examined, Examination(examined.node, None, ())):
        text = described(each, 200)
        assert "?[31m???x" in text
        assert all(line.isprintable() for line in text.split("\n"))


def test_the_text_has_the_width_of_the_terminal() -> None:
    findings = node_findings.found(
        dict.fromkeys(NodeCode, "the reason is a long sentence, as an error of the system is")
    )
    text = described(Examination(findings, None, ()), 40)
    wide = [line for line in text.splitlines() if len(line) > 40]
    assert [line for line in wide if " " in line.strip()] == []
