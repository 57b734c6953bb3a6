"""The plugin `kubectl topolet`, run as an administrator does, outside of the node."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
_TOPOLET = """export PYTHONPATH="$1" KUBECONFIG="$2" HOME=/tmp
folder=$3
shift 3
"$@" 2>"$folder/err"
echo $? >"$folder/code"
"""


def run(cluster: Cluster, *words: str, script: str = _TOPOLET) -> tuple[int, str, str]:
    """`kubectl topolet WORDS` as the administrator, from outside of the node: exit code, standard
    output and standard error."""
    world = cluster.control.world
    arguments = (str(ROOT), cluster.control.config("admin"), str(world.folder))
    text = world.run("sh", "-c", script, "sh", *arguments, "kubectl", "topolet", *words)
    code = (world.folder / "code").read_text()
    return int(code), text, (world.folder / "err").read_text()
