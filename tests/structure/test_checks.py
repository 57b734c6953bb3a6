"""The problems of small packages that the tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.checks import citations, import_cycle, problems


def package(folder: Path, **texts: str) -> list[str]:
    """The problems of a package `agent` whose modules have these texts; `__` represents a dot."""
    for name, text in texts.items():
        file = folder.joinpath("agent", *name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        (file.parent / "__init__.py").touch()
    return problems(folder / "agent", frozenset({"proto"}))


def test_modules_that_import_each_other_are_named_however_they_are_imported(tmp_path: Path) -> None:
    texts = {
        "a": "import agent.b.c",
        "b__c": "def f():\n    from agent import d",
        "d": "from agent.a import x",
        "proto__e": "import agent.proto.e, agent.a",
    }
    assert package(tmp_path, **texts) == ["modules import each other: agent.a, agent.b.c, agent.d"]


def test_chains_of_imports_are_no_cycle() -> None:
    none = frozenset[str]()
    imports = {"a": frozenset({"b", "d"}), "b": frozenset({"c"}), "c": none, "d": none}
    assert import_cycle(imports) == []


def test_only_public_classes_of_one_name_are_duplicates(tmp_path: Path) -> None:
    text = "class Claim: pass\nclass _Own: pass\n"
    assert package(tmp_path, a=text, b=text, proto__c=text) == ["two modules define Claim"]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("# see peers.md \u00a73.1", 1),
        ("# \u00a74.2", 1),
        ("# see docs/devices.md", 0),
        ("# RFC 9113 \u00a75.2", 0),
        ("# the kubelet's cpu_assignment.go", 0),
    ],
)
def test_documents_outside_the_repository_are_citations(line: str, count: int) -> None:
    assert len(citations(line)) == count


def test_a_citation_is_named_with_its_module(tmp_path: Path) -> None:
    assert package(tmp_path, a="# see peers.md") == ["agent.a: # see peers.md"]


def test_a_name_in_backquotes_has_to_exist(tmp_path: Path) -> None:
    texts = {
        "host__files": "def read(): ...",
        "node__loop": '"""`host.files.read`, `host.files`, `node.loop`, `spec.host`, `self.x`"""',
        "node__sub__deep": '"""`sub.deep`, `agent.host.files`, `loop.gone`"""',
        "node__stale": '"""`host.files.write`, `host.gone`, `agent.node.gone.f`"""',
    }
    missing = [
        "node.stale: host.files.write does not exist",
        "node.stale: host.gone does not exist",
        "node.stale: node.gone.f does not exist",
    ]
    assert package(tmp_path, **texts) == missing
    (tmp_path / "agent" / "host" / "__init__.py").write_text('"""`host.left`"""')
    assert package(tmp_path, **texts)[3:] == ["host.__init__: host.left does not exist"]
