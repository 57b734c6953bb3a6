"""Which processes are Topolet's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.cluster.faults import processes


def test_processes_are_known_by_the_command_that_they_run() -> None:
    lines = {
        1: "/opt/topolet/bin/python3 /opt/topolet/bin/topolet agent --http=0.0.0.0:9326",
        2: "/usr/bin/python3 /usr/bin/topolet proxy --runtime-endpoint unix:///run/c.sock",
        3: "topolet scheduler",
        4: "python activation.py /run/topolet/cri.sock /run/pid topolet proxy",
        5: "/usr/bin/topolet doctor -o json",
        6: "kube-scheduler --config=/topolet scheduler",
        7: "topolet",
        8: "",
        9: "/opt/topolet/bin/python3 /opt/topolet/bin/topolet agent",
    }
    texts = {
        f"/proc/{pid}/cmdline": "".join(f"{word}\0" for word in line.split())
        for pid, line in lines.items()
    }
    node: Any = SimpleNamespace(machine=SimpleNamespace(read=lambda _: texts))
    assert processes(node) == {"agent": [1, 9], "proxy": [2], "scheduler": [3]}
