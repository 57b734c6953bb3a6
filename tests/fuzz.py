"""`--fuzz FACTOR`: property tests run FACTOR times as many examples, from a random seed if the
factor is greater than 1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

_SETTINGS = "_hypothesis_internal_use_settings"
_TIMEOUT_SECONDS = 300
"""The marker of a test with its usual number of examples."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="try FACTOR times the examples of each property test; above 1, from a random seed",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs after hypothesis has marked its tests."""
    factor = config.getoption("fuzz")
    if factor != 1:
        tests = [each for each in items if each.get_closest_marker("hypothesis")]
        for item in tests:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_SECONDS * max(factor, 1)), append=False)
        for test in {_settings_owner(item): None for item in tests}:
            _scale(test, factor)


def _settings_owner(item: pytest.Item) -> Any:
    """The object with the settings: the function, or the class of a state machine."""
    test = getattr(item, "obj", None)
    test_class = getattr(item, "cls", None)
    return test_class if hasattr(test_class, "settings") else getattr(test, "__func__", test)


def _scale(test: Any, factor: float) -> None:
    name = "settings" if isinstance(test, type) else _SETTINGS
    before = getattr(test, name)
    examples = max(1, round(before.max_examples * factor))
    if factor > 1:
        before = settings(before, derandomize=False, database=None)
    setattr(test, name, settings(before, max_examples=examples))
