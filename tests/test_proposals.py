"""Each statement of the proposals has a module and a test, or a declared difference; and the code
has no key or value of an enum that is not listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests import proposals
from tests.proposals import Statement

STATEMENTS = proposals.statements()


def missing_names(statement: Statement, rows: tuple[str, ...]) -> Iterator[str]:
    """What the statement names and does not exist. `rows`: of docs/compatibility.md."""
    yield from (name for name in statement.modules if not proposals.path_of(name).is_file())
    for text in (statement.key, statement.value):
        names = statement.modules if text else ()
        if names and not any(proposals.contains(name, text) for name in names):
            yield text
    for file, _, name in (each.partition("::") for each in statement.tests):
        if name not in proposals.tests_in(file):
            yield f"{file}::{name}"
    difference = statement.difference
    matching = sum(row.startswith(difference) for row in rows)
    if difference and difference not in rows and matching != 1:
        yield difference


def test_what_a_statement_names_exists() -> None:
    rows = proposals.differences()
    missing = {each.title: list(missing_names(each, rows)) for each in STATEMENTS}
    assert {title: names for title, names in missing.items() if names} == {}


def test_each_statement_is_implemented_and_tested_or_a_difference() -> None:
    lacking = [
        each.title
        for each in STATEMENTS
        if each.open or not (each.difference or (each.modules and each.tests))
    ]
    assert lacking == []


def listed() -> set[str]:
    in_proposals = {text for each in STATEMENTS for text in (each.key, each.value) if text}
    return in_proposals.union(proposals.beyond())


def test_each_key_of_the_code_is_listed() -> None:
    known = listed()
    keys = proposals.keys_of_the_code()
    assert {key: module for key, module in keys.items() if key not in known} == {}


def test_each_value_of_an_enum_of_the_model_is_listed() -> None:
    known = listed()
    unlisted = {
        (name, value)
        for name, values in proposals.enums_of_the_model().items()
        for value in values
        if name not in known and value not in known
    }
    assert unlisted == set()


def test_each_further_name_is_in_the_code_and_listed_once() -> None:
    enums = proposals.enums_of_the_model()
    known = {*proposals.keys_of_the_code(), *enums}
    known |= {value for values in enums.values() for value in values}
    assert set(proposals.beyond()) - known == set()
    duplicates = {name for name, count in Counter(proposals.beyond()).items() if count > 1}
    assert duplicates == set()
    assert set(proposals.beyond()) & {each.key for each in STATEMENTS} == set()


def test_the_page_is_generated_from_the_data() -> None:
    assert proposals.PAGE.read_text() == proposals.page(), "python -m tests.proposals"
