"""`topolet doctor` with a real agent, a real runtime and the kernel's own files."""

import json
import subprocess
from typing import Any

from tests.fixtures.pods import run_pod
from tests.integration.harness import TestNode, kernel_group
from tests.waiting import eventually


def doctor(node: TestNode, *flags: str) -> subprocess.CompletedProcess[str]:
    return node.run_cli(
        "doctor",
        f"--runtime-endpoint=unix://{node.containerd.socket}",
        f"--state-dir={node.state}",
        f"--kubelet-dir={node.folder / 'kubelet'}",
        *flags,
    )


def findings(node: TestNode) -> list[dict[str, Any]]:
    done = doctor(node, "--output=json")
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def test_a_changed_cgroup_is_found_and_sets_the_exit_code(node: TestNode) -> None:
    node.start_agent()
    _, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    eventually("all cpusets are correct", lambda: (node.cpus(lse), node.cpus(ls)) == ("1", "0"))
    eventually("the snapshot has it", lambda: not findings(node))

    node.stop_agent()
    pid = node.direct.container_placement(ls).pid
    (kernel_group(pid, "cpuset") / "cpuset.cpus").write_text("0-1")
    drifted = findings(node)
    assert [(each["kind"], each["expected"], each["found"]) for each in drifted] == [
        ("cgroup-differs", "0", "0-1"),
        ("overlap", "", "1"),
    ]
    assert all(each["container"] == "default/ls main" for each in drifted)
    text = doctor(node).stdout
    assert "default/ls main: cgroup-differs, should be 0, is 0-1" in text
    assert "2 containers, 2 findings" in text


def test_doctor_without_an_agent_has_no_claims(node: TestNode) -> None:
    run_pod(node.direct, node.spec("lse", "LSE", "1"))
    (unseen,) = findings(node)
    assert (unseen["kind"], unseen["expected"]) == ("claim-not-seen-by-agent", "1")
    assert "the agent's decisions can't be read" in doctor(node).stdout


def test_a_missing_runtime_is_an_error_and_not_drift(node: TestNode) -> None:
    done = doctor(node, "--runtime-endpoint=unix:///nowhere.sock")
    assert done.returncode == 2
    assert "/nowhere.sock" in done.stderr
