"""`topolet audit` and `topolet history` on files of the trail."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

import pytest

from agent.cli import remote
from agent.model.audit import AuditEvent, Record
from agent.telemetry.audit import Trail
from tests.cli.conftest import Topolet


def write(state: Path, age_seconds: float, process: str, *records: Record) -> None:
    now = time.time() - age_seconds
    Trail(str(state), process, 1 << 20, lambda: now).append(records)


def record_of_web(event: str, **values: str) -> Record:
    return Record(event=event, namespace="default", pod="web", uid="u", **values)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder that an environment variable names, as in a pod."""
    monkeypatch.setenv("TOPOLET_STATE_DIR", str(tmp_path))
    write(
        tmp_path,
        2 * 86_400,
        "agent",
        record_of_web(AuditEvent.POD_DECIDED, message="class LS, long ago"),
    )
    write(tmp_path, 7_200, "agent", record_of_web(AuditEvent.CPUS_ASSIGNED, after="2-3"))
    write(tmp_path, 60, "proxy", record_of_web(AuditEvent.CONTAINER_ADMITTED, container="main"))
    write(tmp_path, 30, "agent", Record(event="PodEnded", namespace="other", pod="web", uid="v"))
    return tmp_path


def test_records_of_the_last_day_with_the_newest_last(state: Path, topolet: Topolet) -> None:
    lines = topolet("audit").out.splitlines()[1:]
    assert [each.split()[3] for each in lines] == ["CPUsAssigned", "ContainerAdmitted", "PodEnded"]


@pytest.mark.parametrize(
    ("arguments", "events"),
    [
        (["default/web"], ["CPUsAssigned", "ContainerAdmitted"]),
        (["web", "-n", "other"], ["PodEnded"]),
        (["web", "--since=1h"], ["ContainerAdmitted", "PodEnded"]),
        (["--since=3d"], ["PodDecided", "CPUsAssigned", "ContainerAdmitted", "PodEnded"]),
        (["--container=main"], ["ContainerAdmitted"]),
        (["absent"], []),
    ],
)
def test_filters(state: Path, topolet: Topolet, arguments: list[str], events: list[str]) -> None:
    calls = topolet("audit", *arguments, "-o", "json").json
    assert calls["schema_version"] == 1
    assert [each["event"] for each in calls["records"]] == events


def test_a_history(state: Path, topolet: Topolet) -> None:
    text = topolet("history", "default/web").out
    assert text.startswith("Pod default/web, uid u\n")
    assert "The pod owns CPUs 2-3." in text
    assert "long ago" not in text
    printed = topolet("history", "absent", code=1)
    assert printed.err == "topolet: the audit trail has no record of pod absent in that time\n"
    calls = topolet("history", "web", "-o", "json").json
    assert [(each["title"], len(each["sentences"])) for each in calls["pods"]] == [
        ("default/web", 2),
        ("other/web", 1),
    ]


def test_lines_that_are_not_records_are_counted(state: Path, topolet: Topolet) -> None:
    path = next((state / "audit").glob("proxy.*"))
    path.write_bytes(path.read_bytes() + b"{torn\n")
    captured = topolet("audit")
    assert captured.err == "topolet: 1 line of the audit trail can't be read\n"
    assert "ContainerAdmitted" in captured.out


def test_without_a_trail(tmp_path: Path, topolet: Topolet) -> None:
    for arguments in (["audit"], ["history", "web"]):
        printed = topolet(*arguments, f"--state-dir={tmp_path}", code=1)
        assert f"{tmp_path} has no audit trail" in printed.err


@pytest.mark.parametrize("since", ["", "1", "h", "1w", "-1h", "1h x", "٣h"])
def test_a_wrong_duration(since: str, topolet: Topolet) -> None:
    printed = topolet("audit", f"--since={since}", code=2)
    assert "is not a time like 30m, 1h or 2d" in printed.err


def test_on_another_node(monkeypatch: pytest.MonkeyPatch, topolet: Topolet) -> None:
    """The namespace of the agent is not the namespace of the pod."""
    calls: list[tuple[str, str, str, tuple[str, ...]]] = []

    def run_on_node(command: str, arguments: Namespace, kind: object, *flags: str) -> int:
        calls.append((command, arguments.node, arguments.namespace, flags))
        return 7

    monkeypatch.setattr(remote, "run_on_node", run_on_node)
    topolet("history", "web", "-n", "shop", "--node=n1", "--since=1h30m", code=7)
    topolet("audit", "--node=n1", "--agent-namespace=tools", "--container=main", code=7)
    assert calls == [
        (
            "history",
            "n1",
            "topolet-system",
            ("--namespace=shop", "--output=text", "--since=5400s", "web"),
        ),
        ("audit", "n1", "tools", ("--output=table", "--container=main", "--since=86400s")),
    ]
