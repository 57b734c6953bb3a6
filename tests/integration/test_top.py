"""`topolet top` with a real agent and a real runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

import msgspec
import pytest

from agent.usage.past import PastHour
from agent.view import past
from tests.fixtures.pods import remove_pod, run_pod
from tests.fixtures.screen import EmulatedTerminal, topolet
from tests.integration.harness import TestNode, kernel_group
from tests.waiting import eventually

_SECONDS: Final = 60.0


def test_the_screen_shows_pods_that_start_move_and_end(node: TestNode) -> None:
    node.start_agent()
    node.start_proxy()
    _, ls = run_pod(node.proxied, node.spec("ls", "LS"))
    words = topolet(
        "top",
        f"--state-dir={node.state}",
        f"--runtime-endpoint=unix://{node.containerd.socket}",
        "--every=0.3",
    )
    with EmulatedTerminal(words) as terminal:
        terminal.until("the shared pod", lambda text: "= default/ls" in text)
        assert "! " not in terminal.text
        sandbox, lse = run_pod(node.proxied, node.spec("lse", "LSE", "1"))
        eventually("both have their CPUs", lambda: (node.cpus(ls), node.cpus(lse)) == ("0", "1"))
        text = terminal.until(
            "the owner, its CPU, the change and the usage",
            lambda text: (
                all(
                    part in text
                    for part in ("a default/lse", "1a", "moves to CPUs 0", "LS pool     1 CPU ")
                )
                and " - " not in line_of(text, ">a default/lse")
            ),
        )
        assert "iB " in line_of(text, ">a default/lse")

        terminal.press("/default/lse\r\r")
        terminal.until(
            "the details of the pod", lambda text: "Pod default/lse" in text and "running" in text
        )
        terminal.resize(100, 60)
        opened = terminal.until("all details", lambda text: "Annotations" in text)
        assert '"cpuset": "1"' in opened
        of_main = opened.partition("Cgroup of main")[2]
        assert line_of(of_main, "cpuset.cpus ").split()[-1] == "1"
        assert "The pod owns CPUs 1, as its annotation" in opened
        terminal.press("\x1b\x1b")
        terminal.resize(80, 24)
        terminal.until("all pods", lambda text: " 2 pods" in text)

        remove_pod(node.direct, sandbox)
        terminal.until(
            "the end of the pod", lambda text: "The pod is gone." in text and " 1 pod," in text
        )
        node.kill_agent()
        terminal.until("the end of the agent", lambda text: "! the agent does not run" in text)
        terminal.press("q")
        assert terminal.ended() == 0


def line_of(text: str, part: str) -> str:
    return next((line for line in text.splitlines() if part in line), "")


@pytest.mark.long
def test_the_load_of_the_last_hour_of_a_busy_pod(node: TestNode) -> None:
    spec = node.spec("busy", "LSE", "1")
    _, container = run_pod(node.direct, spec)
    group = kernel_group(node.direct.container_status(container).pid, "cpuacct")
    node.start_agent("--usage=true")
    words = topolet(
        "top",
        f"--state-dir={node.state}",
        f"--runtime-endpoint=unix://{node.containerd.socket}",
        "--output=json",
    )

    def hour() -> PastHour:
        printed = subprocess.run(words, check=True, capture_output=True, timeout=_SECONDS).stdout
        return msgspec.convert(json.loads(printed)["hour"], PastHour, strict=False)

    def is_loaded() -> bool:
        return (past.last(past.of_pod(hour(), spec.uid).cpus) or 0.0) > 0.05

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            (group / "cgroup.procs").write_text(str(busy.pid))
            eventually("its CPUs are in the last hour", is_loaded, _SECONDS)
        finally:
            busy.kill()
    sampled = hour()
    owned_cpus = sum(
        past.last(pool.load.of_cpus) or 0.0 for pool in sampled.pools if pool.kind == "own"
    )
    assert owned_cpus == 1.0
    assert past.last(sampled.machine.cpus) is not None
    assert past.last(past.of_pod(sampled, spec.uid).memory_bytes) is not None
    picture = subprocess.run(
        [*words[:-1], "--once"],
        check=True,
        capture_output=True,
        env={**os.environ, "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"},
        timeout=_SECONDS,
        text=True,
    ).stdout
    assert "LAST HOUR" in line_of(picture, "POD ")
    assert "default/busy LSE" in picture
    recorded = subprocess.run(
        topolet("history", f"--state-dir={node.state}", "default/busy", "--output=json"),
        check=True,
        capture_output=True,
        timeout=_SECONDS,
    )
    (pod,) = json.loads(recorded.stdout)["pods"]
    assert any(minute is not None for minute in pod["hour"]["load"]["cpus"])
