"""The documents have the figures of docs/figures.json, and a run of a benchmark changes both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import figures

BLOCK = re.compile(r"<!-- figures: [\w-]+ -->\n.*?<!-- end -->\n", re.DOTALL)
TABLE = re.compile(r"^\|[-|]+\|$", re.MULTILINE)
PROGRAM = """import json
print(json.dumps({rows}))
"""
TEXT = "| {tiny:walk:row} |\n"


@pytest.mark.parametrize("document", figures.DOCUMENTS, ids=lambda path: path.name)
def test_a_document_has_the_figures_that_were_measured(document: Path) -> None:
    """`make numbers` measures; `python -m benchmarks.figures --render` only writes."""
    text = document.read_text()
    assert figures.rendered(text, figures.stored()) == text


def test_every_text_stands_in_one_document() -> None:
    documents = "".join(document.read_text() for document in figures.DOCUMENTS)
    for name in figures.texts():
        assert documents.count(f"<!-- figures: {name} -->\n") == 1, name


def test_every_stored_row_is_quoted() -> None:
    assert {name: set(run.rows) for name, run in figures.stored().items()} == figures.quoted()


def test_a_table_that_no_command_writes_says_so() -> None:
    page = BLOCK.sub("", (figures.ROOT / "docs" / "benchmarks.md").read_text())
    for section in page.split("\n## "):
        assert "by hand" in section or not TABLE.search(section), section


@pytest.mark.parametrize(
    ("number", "text"),
    [(2.0, "2"), (16.66, "16.7"), (0.00001, "0.00001"), (0.01534, "0.0153"), (6240.9, "6,241")],
)
def test_a_figure_has_three_digits(number: float, text: str) -> None:
    assert figures.figure(number) == text


@pytest.mark.parametrize(
    ("row", "quote", "text"),
    [
        ({"value": 0.0741, "unit": "ms"}, "", "74.1 µs"),
        ({"value": [300.0, 1500.0], "unit": "ms"}, "", "0.3-1.5 s"),
        ({"value": 12.0, "p99": 31.0, "unit": "ms"}, ":p99", "31 ms"),
        ({"value": 12.0, "unit": "ms"}, "!n", "12"),
        ({"value": 0.1006, "unit": "part of pods"}, "!%", "10.1 %"),
        ({"value": 2418.0, "unit": "B/s"}, "", "2.42 KB/s"),
        ({"ours": 3, "base": 2, "ratio": 1.5, "unit": "count + 1"}, ":base!-1", "1"),
        ({"ours": 3.0, "base": 2.0, "ratio": 1.5, "unit": "s"}, ":row", "3 s | 2 s | 1.5"),
    ],
)
def test_a_quote_becomes_the_figure_with_its_unit(
    row: dict[str, object], quote: str, text: str
) -> None:
    run = figures.BenchmarkRun("python tiny.py", "2 CPUs", "2026-11-30", "0" * 8, {"walk": row})
    assert figures.filled(f"| {{tiny:walk{quote}}} |\n", {"tiny": run}) == f"| {text} |\n"


class Project:
    """A repository with one benchmark and one document."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "benchmarks").mkdir()
        self.page = folder / "page.md"
        self.page.write_text("Before.\n<!-- figures: tiny -->\n<!-- end -->\nAfter.\n")
        (folder / "texts.md").write_text(f"<!-- figures: tiny -->\n{TEXT}<!-- end -->\n")
        (folder / "figures.json").write_text("{}")

    def run(self, *rows: dict[str, object]) -> list[str]:
        """Measures these rows; returns what was said."""
        (self.folder / "benchmarks" / "tiny.py").write_text(PROGRAM.format(rows=list(rows)))
        return list(figures.measure(()))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "STORE", tmp_path / "figures.json")
    monkeypatch.setattr(figures, "TEXTS", tmp_path / "texts.md")
    monkeypatch.setattr(figures, "DOCUMENTS", (tmp_path / "page.md",))
    monkeypatch.setattr(figures, "commit", lambda: "0" * 8)
    return Project(tmp_path)


def test_a_run_writes_the_figures_and_what_they_were_measured_on(project: Project) -> None:
    row = {"case": "walk", "ours": 3.14159265, "base": 2, "ratio": 1.5, "unit": "ms"}
    assert len(project.run(row, {"case": "not quoted", "value": 1, "unit": "ms"})) == 1
    (run,) = figures.stored().values()
    assert (run.command, run.machine) == ("python benchmarks/tiny.py", figures.machine())
    assert run.rows == {"walk": {"ours": 3.14159, "base": 2, "ratio": 1.5, "unit": "ms"}}
    assert "\n| 3.14 ms | 2 ms | 1.5 |\n" in project.page.read_text()


def test_a_run_without_a_base_or_with_an_error_leaves_figures_as_they_are(
    project: Project,
) -> None:
    project.run({"case": "walk", "ours": 3, "base": 2, "ratio": 1.5, "unit": "ms"})
    before = project.page.read_text(), figures.STORE.read_text()
    skipped = {"case": "walk", "ours": 9, "unit": "ms", "skipped": "no Go"}
    assert project.run(skipped) == ["left as it was: tiny: walk: no Go"]
    assert project.run() == ["left as it was: tiny: walk: no ours"]
    (project.folder / "benchmarks" / "tiny.py").write_text("raise SystemExit(3)")
    assert list(figures.measure(())) == ["left as it was: tiny: it ended with 3"]
    assert (project.page.read_text(), figures.STORE.read_text()) == before
