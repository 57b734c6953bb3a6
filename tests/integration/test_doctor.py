"""`topolet doctor` with a real agent, a real runtime and the kernel's own files."""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.model.notifications import SOCKET
from tests.fixtures.pods import run_pod
from tests.integration.harness import TestNode, kernel_group
from tests.integration.nri_node import NriNode
from tests.waiting import eventually


def doctor(node: TestNode, *flags: str) -> subprocess.CompletedProcess[str]:
    return node.run_cli(
        "doctor",
        f"--runtime-endpoint=unix://{node.containerd.socket}",
        f"--state-dir={node.state}",
        f"--kubelet-dir={node.folder / 'kubelet'}",
        *flags,
    )


def examined(node: TestNode) -> dict[str, Any]:
    done = doctor(node, "--output=json")
    found: dict[str, Any] = json.loads(done.stdout)
    everything = found["node"] + found["findings"]
    errors = [each for each in everything if each["severity"] == "error"]
    assert done.returncode == (1 if errors else 0), done.stderr
    assert all(each["remedy"] for each in everything)
    assert found["schema_version"] == 1
    assert found["facts"]["runtime"].startswith("containerd ")
    return found


def findings(node: TestNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = examined(node)["findings"]
    return found


def codes(node: TestNode) -> list[str]:
    return [each["code"] for each in examined(node)["node"] if each["severity"] == "error"]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_program_that_keeps_changing_cpus_is_found_and_named(node: TestNode) -> None:
    """The agent undoes each change at once: only the audit trail shows them."""
    node.start_agent()
    _, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    eventually("all cpusets are correct", lambda: (node.cpus(lse), node.cpus(ls)) == ("1", "0"))
    file = kernel_group(node.direct.container_status(ls).pid, "cpuset") / "cpuset.cpus"
    loop = f"while :; do echo 0-1 >{file}; sleep 0.1; done"
    kind = 'topolet_foreign_changes_total{kind="cpus"}'
    with subprocess.Popen(["sh", "-c", loop]) as writer:
        eventually("it is counted", lambda: node.metric(kind) > 10)
        (text,) = (
            each["text"] for each in examined(node)["node"] if each["code"] == "competing-writer"
        )
        writer.kill()
    assert "another process changed cpuset.cpus of default/ls main " in text
    assert "another process had set it to 0-1; " in text
    assert f"process {writer.pid} writes there: sh -c while :; do echo 0-1" in text


def test_a_changed_cgroup_is_found_and_sets_the_exit_code(node: TestNode) -> None:
    node.start_agent()
    _, lse = run_pod(node.direct, node.spec("lse", "LSE", "1"))
    _, ls = run_pod(node.direct, node.spec("ls", "LS"))
    eventually("all cpusets are correct", lambda: (node.cpus(lse), node.cpus(ls)) == ("1", "0"))
    eventually("the snapshot has it", lambda: not findings(node))
    assert codes(node) == []

    node.stop_agent()
    pid = node.direct.container_status(ls).pid
    (kernel_group(pid, "cpuset") / "cpuset.cpus").write_text("0-1")
    drifted = findings(node)
    assert [(each["kind"], each["expected"], each["found"]) for each in drifted] == [
        ("cgroup-differs", "0", "0-1"),
        ("overlap", "", "1"),
    ]
    assert all(each["container"] == "default/ls main" for each in drifted)
    text = doctor(node).stdout
    assert text.startswith("agent-absent: no agent uses the state folder ")
    assert "default/ls main: cgroup-differs, should be 0, is 0-1" in text
    assert "2 containers, 3 findings" in text


def test_an_agent_that_is_stopped_is_the_first_finding(node: TestNode) -> None:
    """Its snapshot lacks newer pods, which would look like drift."""
    node.start_agent()
    run_pod(node.direct, node.spec("ls", "LS"))
    eventually("the snapshot has it", lambda: examined(node)["seen"][0]["wanted"] == "0-1")
    with stopped(node.agent_pid):
        assert codes(node) == ["agent-does-not-answer"]
        text = doctor(node).stdout
        fill(node.state / SOCKET)
        assert codes(node) == ["agent-does-not-answer"]
    assert text.startswith("agent-does-not-answer: the agent has made no decision within 3 s\n")
    eventually("it answers again", lambda: codes(node) == [])


def fill(path: Path) -> None:
    """Sends datagrams until the queue of the socket is full, so that the doctor cannot send any."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender,
        contextlib.suppress(BlockingIOError),
    ):
        while True:
            sender.sendto(b"{}", str(path))


def test_doctor_without_an_agent_has_no_claims(node: TestNode) -> None:
    run_pod(node.direct, node.spec("lse", "LSE", "1"))
    (unseen,) = findings(node)
    assert (unseen["kind"], unseen["expected"]) == ("claim-not-seen-by-agent", "1")
    assert codes(node) == ["agent-absent"]


def test_files_and_sockets_that_cannot_be_used(node: TestNode) -> None:
    node.start_agent()
    node.stop_agent()
    (node.state / "snapshot.json").write_text('{"generation":')
    kubelet = node.folder / "kubelet"
    kubelet.mkdir(exist_ok=True)
    (kubelet / "cpu_manager_state").write_text("{")
    with socket.socket(socket.AF_UNIX) as dead:
        node.state.mkdir(exist_ok=True)
        dead.bind(node.cri_socket)
    assert codes(node) == [
        "agent-absent",
        "snapshot-unreadable",
        "proxy-unavailable",
        "kubelet-state-unreadable",
    ]


def test_a_missing_runtime_is_one_finding_and_not_drift(node: TestNode) -> None:
    node.start_agent()
    done = doctor(node, "--runtime-endpoint=unix:///nowhere.sock")
    assert (done.returncode, done.stderr) == (2, "")
    text = " ".join(done.stdout.split())  # the lines have the terminal's width
    assert text.startswith("runtime-unavailable: the container runtime does not answer: ")
    assert "/nowhere.sock: No such file or directory -> start the container runtime" in text
    assert "No container was examined, 1 finding" in done.stdout


def test_cgroups_that_cannot_be_used(node: TestNode) -> None:
    done = doctor(node, f"--cgroup-root={node.folder}", "--output=json")
    assert done.returncode == 2
    assert [each["code"] for each in json.loads(done.stdout)["node"]] == [
        "cgroups-unusable",
        "agent-absent",
    ]


def test_a_socket_of_a_proxy_that_the_kubelet_does_not_use(node: TestNode) -> None:
    """The kubelet is a shell whose command line is that of a kubelet."""
    node.start_agent()
    node.start_proxy()
    kubelet = node.folder / "kubelet"
    kubelet.mkdir(exist_ok=True)
    program = node.folder / "bin" / "kubelet"
    program.parent.mkdir()
    program.symlink_to("/bin/sh")
    config = node.folder / "config.yaml"
    config.write_text("{kind: KubeletConfiguration, cpuManagerPolicy: static}\n")
    (kubelet / "cpu_manager_state").write_text(
        '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    )
    flags = (f"--root-dir={kubelet}", f"--config={config}")
    words = ["kubelet", "-c", "read end", *flags]
    with subprocess.Popen(words, executable=program, stdin=subprocess.PIPE) as process:
        try:
            assert set(codes(node)) >= {"kubelet-bypasses-proxy", "kubelet-policy-differs"}
        finally:
            process.kill()


def test_an_nri_plugin_that_no_runtime_calls(node: TestNode) -> None:
    node.start_agent()
    nri = NriNode(node)
    nri.start_plugin("--nri-socket=/nowhere/nri.sock", waits=False)
    try:
        eventually("doctor reports it", lambda: codes(node) == ["nri-unavailable"])
        assert "/nowhere/nri.sock: No such file or directory" in doctor(node).stdout
        assert examined(node)["facts"]["frontend"] == "nri"
    finally:
        nri.close()
    assert codes(node) == []


def test_a_full_disk(node: TestNode) -> None:
    """The agent cannot write its snapshot and reports the reason; it recovers by itself."""
    node.state.mkdir(exist_ok=True)
    mounted = ("mount", "-t", "tmpfs", "-o", "size=4m", "topolet-test", str(node.state))
    subprocess.run(mounted, check=True)
    try:
        node.start_agent()
        filler = node.state / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        run_pod(node.direct, node.spec("lse", "LSE", "1"))
        eventually("doctor reports it", lambda: "state-folder-full" in codes(node))
        eventually(
            "the agent reports the reason", lambda: "No space left" in node.get("/readyz")[1]
        )
        filler.unlink()
        eventually("it decides again", lambda: node.get("/readyz")[0] == 200)
        eventually("nothing is wrong", lambda: codes(node) == [])
        node.stop_agent()
    finally:
        node.kill_agent()
        subprocess.run(["umount", "-l", str(node.state)], check=True)
