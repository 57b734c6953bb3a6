"""Each statement of the proposals has a module and a test, a declared difference, or is open; and
the code has no key or value of an enum that is not listed."""

from __future__ import annotations

from collections import Counter

from tests import proposals
from tests.proposals import Statement

STATEMENTS = proposals.statements()
MAX_OPEN = 0
"""Lower it with each closed statement. It may not grow: a statement that is no longer true is
fixed, or becomes a difference in docs/compatibility.md."""


def messages(what: str, each: Statement, names: list[str]) -> list[str]:
    return [f"{each.title}: no {what} {name}" for name in names]


def test_each_statement_is_implemented_and_tested_or_a_difference_or_open() -> None:
    lacking = [
        each.title
        for each in STATEMENTS
        if not (each.open or each.difference) and not (each.modules and each.tests)
    ]
    assert lacking == []


def test_each_module_exists() -> None:
    found = []
    for each in STATEMENTS:
        missing_names = [name for name in each.modules if not proposals.path_of(name).is_file()]
        found += messages("module", each, missing_names)
    assert found == []


def test_each_key_and_value_is_in_one_of_its_modules() -> None:
    found = []
    for each in STATEMENTS:
        if each.modules:
            missing_names = [
                text
                for text in (each.key, each.value)
                if text and not any(proposals.contains(name, text) for name in each.modules)
            ]
            found += messages(f"module of {each.modules} with", each, missing_names)
    assert found == []


def test_each_test_exists() -> None:
    found = []
    for each in STATEMENTS:
        missing_names = [
            name
            for name in each.tests
            if name.partition("::")[2] not in proposals.tests_in(name.partition("::")[0])
        ]
        found += messages("test", each, missing_names)
    assert found == []


def test_each_difference_is_a_row_of_the_document() -> None:
    rows = proposals.differences()
    found = []
    for each in STATEMENTS:
        if each.difference and each.difference not in rows:
            matching = [row for row in rows if row.startswith(each.difference)]
            if len(matching) != 1:
                found += messages("single row of docs/compatibility.md", each, [each.difference])
    assert found == []


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


def test_the_number_of_open_statements_shrinks() -> None:
    assert len([each for each in STATEMENTS if each.open]) == MAX_OPEN


def test_the_page_is_generated_from_the_data() -> None:
    assert proposals.PAGE.read_text() == proposals.page(), "python -m tests.proposals"
