"""What commands write about files, folders and servers that can't be used: the place, and the
reason in words, without numbers of errors, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.model.settings.agent import KubeletStateSettings
from agent.node.doctor import examine
from agent.node.node_findings import NodeCode
from tests.cli.conftest import Topolet


@pytest.fixture(autouse=True)
def no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("explain x", "no kubeconfig: --kubeconfig or the variable KUBECONFIG names one"),
        ("rebind n", "no kubeconfig: --kubeconfig or the variable KUBECONFIG names one"),
        ("simulate --from-cluster", "no kubeconfig: --kubeconfig or the variable KUBECONFIG"),
        ("explain x --kubeconfig FOLDER/none", "kubeconfig FOLDER/none: no such file"),
        ("explain x --kubeconfig /bin/ls", "kubeconfig /bin/ls: is not YAML"),
        ("explain /bin/ls --objects OBJECTS", "/bin/ls: is not YAML"),
        ("explain x --objects /bin/ls", "/bin/ls: is not YAML"),
        ("explain x --objects FOLDER", "FOLDER: has no file .yaml, .yml or .json"),
        ("explain FOLDER/x.yaml --objects OBJECTS", "FOLDER/x.yaml: No such file or directory"),
        ("simulate --objects FOLDER", "FOLDER: has no file .yaml, .yml or .json"),
        ("simulate --objects FOLDER/none", "FOLDER/none: No such file or directory"),
        ("simulate --nodes /bin/ls --pods /bin/ls", "/bin/ls: is not UTF-8"),
        ("simulate --nodes FOLDER --pods /bin/ls", "FOLDER: Is a directory"),
        ("simulate --objects OBJECTS --pod SERVICE", "Service s is neither a pod nor a workload"),
        ("topology --owners -o json --state-dir SNAPSHOT", "SNAPSHOT/snapshot.json: Is a dir"),
        ("doctor --bundle FOLDER/no/x --state-dir FOLDER", "FOLDER/no/x: No such file or"),
        ("audit --state-dir /bin/ls", "/bin/ls/audit: Not a directory"),
        ("config check /bin/ls", "/bin/ls: is not UTF-8"),
        ("config check FOLDER", "FOLDER: Is a directory"),
        ("restore --state-dir /bin/ls", "/bin/ls is not a folder"),
        ("kubelet-state --kubelet-dir /bin/ls", "/bin/ls is not a folder"),
    ],
)
def test_a_message_names_the_place_and_the_reason(
    words: str, message: str, tmp_path: Path, topolet: Topolet
) -> None:
    folder, objects = tmp_path / "empty", tmp_path / "objects"
    folder.mkdir()
    objects.mkdir()
    (objects / "node.yaml").write_text("{kind: Node, metadata: {name: n}}")
    (tmp_path / "service.yaml").write_text("{kind: Service, metadata: {name: s}, spec: {}}")
    (tmp_path / "state" / "snapshot.json").mkdir(parents=True)
    names = {
        "FOLDER": str(folder),
        "OBJECTS": str(objects),
        "SERVICE": str(tmp_path / "service.yaml"),
        "SNAPSHOT": str(tmp_path / "state"),
    }
    for name, path in names.items():
        words, message = words.replace(name, path), message.replace(name, path)
    error = topolet(*words.split(), code=None).err
    assert message in error
    assert "Errno" not in error
    assert "Traceback" not in error


def test_a_folder_in_place_of_the_snapshot_is_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "snapshot.json").mkdir()
    settings = KubeletStateSettings(
        root=str(tmp_path), state_dir=str(tmp_path), cgroup_root=str(tmp_path), kubelet_dir="/none"
    )
    found = {each.code: each for each in examine(settings).node}
    assert found[NodeCode.SNAPSHOT].text == (
        "the agent's decisions can't be read: /snapshot.json: Is a directory"
    )
    assert found[NodeCode.SNAPSHOT].remedy.startswith("remove what is at that path")
