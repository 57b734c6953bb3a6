"""A release of the chart on a cluster, by the commands of the documents, and the state that is
compared before and after it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from tests.cluster.cluster import HOST, NAMESPACE, Cluster
from tests.deploy import chart
from tests.integration.helmcluster import KINDS

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "install.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documented(heading: str, *words: str) -> list[str]:
    """The words of the only command below a heading of docs/install.md with this beginning."""
    lines = block(heading, "sh").replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
    (command,) = (each for each in found if tuple(each[: len(words)]) == words)
    return command


def block(heading: str, language: str) -> str:
    """The texts in that language below a heading of docs/install.md."""
    text = _PAGE.read_text()
    start = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert start is not None, heading
    rest = text[start.end() :]
    prose = _BLOCK.sub(lambda found: " " * len(found[0]), rest)
    end = re.search(rf"^#{{1,{len(start[1])}}} ", prose, re.MULTILINE)
    section = rest[: end.start()] if end else rest
    return "".join(each for kind, each in _BLOCK.findall(section) if kind == language)


def helm(cluster: Cluster, folder: Path, *words: str) -> str:
    """Runs helm; its output and errors, which contain hooks' logs. Raises ProgramError."""
    control = cluster.control
    config = control.config("admin")
    where = (f"--kubeconfig={config}", f"--namespace={NAMESPACE}")
    program = (f"HOME={folder}", str(chart.helm()), *words, *where)
    return control.world.run("sh", "-c", 'exec "$@" 2>&1', "sh", "env", *program, seconds=400)


def node(cluster: Cluster) -> dict[str, Any]:
    """The fields of the Node that Topolet and other components write."""
    found = cluster.get("node", HOST)
    assert found is not None
    metadata, status = found["metadata"], found["status"]
    return {
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "capacity": status["capacity"],
        "allocatable": status["allocatable"],
    }


def names(cluster: Cluster) -> set[str]:
    """The names of all objects of the chart's kinds except CRDs, which stay."""
    items = json.loads(cluster.kubectl("get", KINDS, "-A", "-o", "json"))["items"]
    return {
        f"{each['kind']}/{each['metadata']['name']}"
        for each in items
        if each["kind"] != "CustomResourceDefinition"
    }


def reports(cluster: Cluster) -> list[Any]:
    """The objects that agents write."""
    kinds = "noderesourcetopologies,devices"
    found: list[Any] = json.loads(cluster.kubectl("get", kinds, "-o", "json"))["items"]
    return found
