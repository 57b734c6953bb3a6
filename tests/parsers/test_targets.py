"""Every parser of foreign bytes returns a small value or raises its declared error, which names the
object, in bounded time and memory. `python -m tests.parsers` tries more inputs."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parsers.calls import called, decoding
from tests.parsers.target import Target, run
from tests.parsers.targets import targets
from tests.parsers.untried import UNTRIED

COUNT = int(os.environ.get("TOPOLET_FUZZ_INPUTS", "4000"))
_FOLDER = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
TARGETS = list(targets(Path(_FOLDER.name)))


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Readers log the faults of objects."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", TARGETS, ids=[each.name for each in TARGETS])
def test_a_parser_returns_a_value_or_raises_its_declared_error(
    target: Target, pytestconfig: pytest.Config
) -> None:
    run(target, round(COUNT * min(1, pytestconfig.getoption("fuzz")) / target.weight))


def test_every_parser_has_a_target_or_a_reason_for_having_none() -> None:
    tried = {name for target in TARGETS for name in called(target.try_examples)}
    untried = {name for names in UNTRIED.values() for name in names}
    assert sorted(set(decoding()) - tried) == sorted(untried)
