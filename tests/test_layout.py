"""The places of tests: the tests of agent/a/b.py are in tests/a/test_b.py or in
tests/a/test_b_ASPECT.py, or a test imports the module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

TESTS = Path(__file__).resolve().parent
AGENT = TESTS.parent / "agent"
GENERATED = "proto"
NAMED = re.compile(r"^\s*(?:from|import) tests\b.*\btest_", re.MULTILINE)

COVERED: Final[dict[str, tuple[str, ...]]] = {
    "allocate/node_allocator/test_allocator.py": ("allocate.node_allocator.part",),
    "cli/test_audit_commands.py": ("cli.history",),
    "cli/test_top.py": ("cli.screen",),
    "http/test_attacks.py": ("http.connection",),
    "integration/test_install_proxy.py": ("install.folder",),
    "relay/test_relay.py": ("relay.calls", "relay.flow_control"),
    "view/test_machine.py": ("view.nesting",),
}
"""Test files that cover modules which no test imports: they call them through others."""
SEVERAL: Final = frozenset(
    {
        "cli/test_main.py",
        "cli/test_secrets.py",
        "discover/test_hostile_devices.py",
        "http/test_descriptors.py",
        "node/test_modes.py",
        "nri/test_frontends.py",
        "relay/test_grpc_go.py",
        "relay/test_large_requests.py",
        "relay/test_transparency.py",
        "scheduler/test_histories.py",
        "scheduler/test_plain_pods.py",
    }
)
"""Test files of a package that are about several of its modules together."""


def named_for(test: PurePosixPath, folder: Path) -> set[str]:
    """The modules of a folder whose tests are in this file, by its name."""
    name = test.stem.removeprefix("test_")
    modules = {each.stem for each in folder.glob("*.py") if each.stem != "__init__"}
    return {each for each in modules if name == each or name.startswith(f"{each}_")}


def files_of_tests() -> Iterator[PurePosixPath]:
    """Relative to tests/."""
    for file in sorted(TESTS.rglob("test_*.py")):
        yield PurePosixPath(file.relative_to(TESTS).as_posix())


def dotted(module: Path) -> str:
    return ".".join(module.relative_to(AGENT).with_suffix("").parts)


def modules_with_tests_of_their_name() -> set[str]:
    return {
        dotted(AGENT / test.parent / max(names, key=len))
        for test in files_of_tests()
        if (names := named_for(test, AGENT / test.parent))
    }


def modules() -> set[str]:
    return {
        dotted(file)
        for file in AGENT.rglob("*.py")
        if file.stem != "__init__" and GENERATED not in file.parts
    }


def imported_modules() -> set[str]:
    """The modules that the tests and their helpers import."""
    names = set()
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
    return {each.removeprefix("agent.") for each in names}


def test_every_module_has_tests() -> None:
    covered = {each for modules in COVERED.values() for each in modules}
    untested = modules() - modules_with_tests_of_their_name() - imported_modules()
    assert untested - covered == set()
    assert covered - modules() == set()


def test_every_test_file_of_a_package_belongs_to_modules() -> None:
    """Of agent, or of the tests, such as tests/nri/fake.py."""
    assert {
        str(test)
        for test in files_of_tests()
        if test.parent.parts
        and (AGENT / test.parent).is_dir()
        and str(test) not in COVERED
        and not named_for(test, AGENT / test.parent)
        and not named_for(test, TESTS / test.parent)
    } == SEVERAL


def imported(file: Path) -> Iterator[str]:
    """Names with `test_`, without those of tests: tests/vm runs some of other suites in a guest."""
    text = file.read_text()
    if not NAMED.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [each.name for each in node.names]
            yield from (f"{node.module}.{name}" for name in names)
            if not all(name.startswith("test_") for name in names):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def test_no_test_file_is_imported() -> None:
    names = {".".join(("tests", *each.with_suffix("").parts)) for each in files_of_tests()}
    assert {
        f"{file.relative_to(TESTS)} imports {name}"
        for file in TESTS.rglob("*.py")
        for name in imported(file)
        if name in names
    } == set()
