"""The figures of small packages that the tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure.figures import (
    Figures,
    citations,
    code_lines,
    longest_chain,
    measure,
)

GENERATED = frozenset({"proto"})


def package(folder: Path, **texts: str) -> Figures:
    """The figures of a package `agent` whose modules have these texts; `__` represents a dot."""
    for name, text in texts.items():
        file = folder.joinpath("agent", *name.split("__")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        (file.parent / "__init__.py").write_text("")
    return measure(folder / "agent", GENERATED)


def test_packages_and_generated_modules_are_not_counted(tmp_path: Path) -> None:
    assert package(tmp_path, a="", b__c="", proto__d="").modules == 2


def test_a_module_is_short_below_60_lines(tmp_path: Path) -> None:
    figures = package(tmp_path, short="x = 1\n" * 59, long="x = 1\n" * 60)
    assert figures.offenders["short_modules"] == ("agent.short",)
    assert figures.largest_module == 60


def test_importers_are_counted_however_a_module_is_imported(tmp_path: Path) -> None:
    figures = package(
        tmp_path,
        once="",
        twice="",
        first="import agent.twice\nfrom agent import once",
        second="def f():\n    from agent.twice import name",
    )
    assert figures.offenders["single_importer"] == ("agent.once",)


def test_the_longest_chain_is_found() -> None:
    none = frozenset[str]()
    imports = {"a": frozenset({"b", "d"}), "b": frozenset({"c"}), "c": none, "d": none}
    assert longest_chain(imports) == ["a", "b", "c"]


def test_modules_that_import_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="imports itself"):
        longest_chain({"a": frozenset({"b"}), "b": frozenset({"a"})})


def test_only_public_classes_of_one_name_are_duplicates(tmp_path: Path) -> None:
    text = "class Claim: pass\nclass _Own: pass\n"
    figures = package(tmp_path, a=text, b=text)
    assert figures.offenders["duplicate_classes"] == ("Claim",)


def test_a_value_that_one_constructor_takes_counts_by_its_fields(tmp_path: Path) -> None:
    values = "class Parts(msgspec.Struct):\n    a: int\n    b: int\n    c: int\n"
    taker = "class Node:\n    def __init__(self, parts: Parts, *, more: int) -> None: ...\n"
    assert package(tmp_path, values=values, taker=taker).constructor_arguments == 4


def test_an_optional_value_counts_too(tmp_path: Path) -> None:
    values = "class Parts(msgspec.Struct):\n    a: int\n    b: int\n"
    taker = "class Node:\n    def __init__(self, parts: Parts | None) -> None: ...\n"
    assert package(tmp_path, values=values, taker=taker).constructor_arguments == 2


def test_a_value_that_other_functions_take_counts_once(tmp_path: Path) -> None:
    values = "class Parts(msgspec.Struct):\n    a: int\n    b: int\n"
    taker = "class Node:\n    def __init__(self, parts: Parts) -> None: ...\n"
    user = "def area(parts: Parts) -> int: ...\n"
    figures = package(tmp_path, values=values, taker=taker, user=user)
    assert figures.constructor_arguments == 1


def test_a_value_that_several_constructors_take_counts_once(tmp_path: Path) -> None:
    values = "class Parts(msgspec.Struct):\n    a: int\n    b: int\n"
    taker = "class {}:\n    def __init__(self, parts: Parts) -> None: ...\n"
    figures = package(tmp_path, values=values, a=taker.format("A"), b=taker.format("B"))
    assert figures.constructor_arguments == 1


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


def test_a_name_in_backquotes_has_to_exist(tmp_path: Path) -> None:
    figures = package(
        tmp_path,
        host__files="def read(): ...",
        node__loop='"""`host.files.read`, `host.files`, `node.loop`, `spec.host`, `self.x`"""',
        node__sub__deep='"""`sub.deep`, `agent.host.files`, `loop.gone`"""',
        node__stale='"""`host.files.write`, `host.gone`, `agent.node.gone.f`"""',
    )
    assert figures.offenders["missing_names"] == (
        "node.stale: host.files.write",
        "node.stale: host.gone",
        "node.stale: node.gone.f",
    )
    (tmp_path / "agent" / "host" / "__init__.py").write_text('"""`host.left`"""')
    missing = measure(tmp_path / "agent", GENERATED).offenders["missing_names"]
    assert "host.__init__: host.left" in missing


def test_docstrings_comments_and_empty_lines_do_not_count_as_code() -> None:
    text = (
        '"""A module."""\n\n# why\nx = (\n    1,\n)\n\n\ndef f():\n    """What."""\n    return x\n'
    )
    assert code_lines(text) == 5
