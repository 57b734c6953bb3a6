"""Pods of the agent as kubectl lists them, and a program that replaces kubectl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RUNNING = {"name": "agent", "state": {"running": {}}}
CRASHED = {
    "name": "agent",
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
}


def pod(name: str, *statuses: dict[str, Any], deleting: bool = False) -> dict[str, Any]:
    ending = {"deletionTimestamp": "2026-01-02T03:04:05Z"} if deleting else {}
    metadata: dict[str, Any] = {"name": name} | ending
    return {
        "metadata": metadata,
        "status": {"phase": "Running", "containerStatuses": list(statuses)},
    }


class Kubectl:
    """Answers `get pods`, `get node` and `get pod`, and records the arguments of `exec`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        program = folder / "kubectl"
        program.write_text(
            f"#!/bin/sh\ncd {folder}\n"
            'while [ "${1#--context}" != "$1" ]; do echo "$1" >context; shift; done\n'
            'if [ "$(cat hangs)" = "$1 $2" ]; then exec sleep 60; fi\n'
            'case "$1 $2" in\n'
            '"get pods") echo "$@" >listed; cat pods; cat refused >&2; exit $(cat code);;\n'
            '"get node") cat node;;\n'
            '"get pod") echo "$@" >named; cat node_of_pod;;\n'
            '*) echo "$@" >executed; echo output; cat error >&2; exit $(cat exec_code);;\n'
            "esac\n"
        )
        program.chmod(0o755)
        self.set_answers(pods=[], node="node/n1")

    def set_answers(self, *, pods: list[Any], node: str = "", refused: str = "") -> None:
        self._write("pods", json.dumps({"items": pods}))
        self._write("node", node)
        self._write("node_of_pod", "n1")
        self._write("refused", refused)
        self._write("code", "1" if refused else "0")
        self._write("hangs", "")
        self.set_exec_result(0, "")

    def set_node_of_pod(self, node: str) -> None:
        self._write("node_of_pod", node)

    def hang(self, command: str) -> None:
        self._write("hangs", command)

    def set_exec_result(self, code: int, error: str) -> None:
        self._write("exec_code", str(code))
        self._write("error", error)

    def read(self, name: str) -> str:
        return (self._folder / name).read_text().strip()

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)
