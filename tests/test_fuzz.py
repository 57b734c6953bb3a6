"""The option that makes property tests try more examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
from pathlib import Path

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

def tried(name):
    with Path(name).open("a") as file:
        file.write(".")

@settings(max_examples=20, derandomize=True)
@given(st.integers())
def test_function(number):
    tried("function")

class TestMethod:
    @settings(max_examples=20)
    @given(st.integers())
    def test_method(self, number):
        tried("method")

class Machine(RuleBasedStateMachine):
    @initialize(number=st.integers())
    def begins(self, number):
        tried("machine")

    @rule(number=st.integers())
    def goes_on(self, number):
        pass

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=20, stateful_step_count=1)

def test_plain():
    tried("plain")
"""


@pytest.mark.parametrize(("words", "least"), [((), 20), (("--fuzz=3",), 60)])
def test_every_property_test_tries_the_configured_number_of_examples(
    tmp_path: Path, words: tuple[str, ...], least: int
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("tests.fuzz",)')
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--rootdir={tmp_path}", *words],
        cwd=tmp_path,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    tried = {name: (tmp_path / name).stat().st_size for name in ("function", "method", "machine")}
    assert all(least <= count < 2 * least for count in tried.values()), tried
    assert (tmp_path / "plain").stat().st_size == 1
