"""`topolet audit` and `topolet history` on files of the trail."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from pathlib import Path

import pytest

from agent.__main__ import main
from agent.cli import remote
from agent.model.audit import AuditEvent, Record
from agent.telemetry.audit import Trail


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


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    return capsys.readouterr().out


def test_records_of_the_last_day_with_the_newest_last(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = output(capsys, "audit").splitlines()[1:]
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
def test_filters(
    state: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], events: list[str]
) -> None:
    calls = json.loads(output(capsys, "audit", *arguments, "-o", "json"))
    assert calls["schema_version"] == 1
    assert [each["event"] for each in calls["records"]] == events


def test_a_history(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "history", "default/web")
    assert text.startswith("Pod default/web, uid u\n")
    assert "The pod owns CPUs 2-3." in text
    assert "long ago" not in text
    assert main(["history", "absent"]) == 1
    assert (
        capsys.readouterr().err
        == "topolet: the audit trail has no record of pod absent in that time\n"
    )
    calls = json.loads(output(capsys, "history", "web", "-o", "json"))
    assert [(each["title"], len(each["sentences"])) for each in calls["pods"]] == [
        ("default/web", 2),
        ("other/web", 1),
    ]


def test_lines_that_are_not_records_are_counted(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next((state / "audit").glob("proxy.*"))
    path.write_bytes(path.read_bytes() + b"{torn\n")
    assert main(["audit"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "topolet: 1 line of the audit trail can't be read\n"
    assert "ContainerAdmitted" in captured.out


def test_without_a_trail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["audit"], ["history", "web"]):
        assert main([*arguments, f"--state-dir={tmp_path}"]) == 1
        assert f"{tmp_path} has no audit trail" in capsys.readouterr().err


@pytest.mark.parametrize("since", ["", "1", "h", "1w", "-1h", "1h x", "٣h"])
def test_a_wrong_duration(since: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", f"--since={since}"])
    assert ended.value.code == 2
    assert "is not a time like 30m, 1h or 2d" in capsys.readouterr().err


def test_on_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace of the agent is not the namespace of the pod."""
    calls: list[tuple[str, str, str, tuple[str, ...]]] = []

    def run_on_node(command: str, arguments: Namespace, kind: object, *flags: str) -> int:
        calls.append((command, arguments.node, arguments.namespace, flags))
        return 7

    monkeypatch.setattr(remote, "run_on_node", run_on_node)
    assert main(["history", "web", "-n", "shop", "--node=n1", "--since=1h30m"]) == 7
    assert main(["audit", "--node=n1", "--agent-namespace=tools", "--container=main"]) == 7
    assert calls == [
        (
            "history",
            "n1",
            "topolet-system",
            ("--namespace=shop", "--output=text", "--since=5400s", "web"),
        ),
        ("audit", "n1", "tools", ("--output=table", "--container=main", "--since=86400s")),
    ]
