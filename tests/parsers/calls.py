"""The functions of `agent` that decode something, and those that an action calls."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.structure.paths import code_pairs, module_of

_AGENT: Final = Path(__file__).resolve().parents[2] / "agent"
_DECODING: Final = re.compile(
    r"(?:.*\.)?(?:bounds\.decode|objects\.decoded|FromString|json\.loads|msgspec\.convert"
    r"|msgspec\.json\.decode|yaml\.load|tomllib\.load|unpack_from|struct\.unpack|fromisoformat"
    r"|unpacker\.decompress|\w*decoder\.decode|_hpack\.decode|_content\.decode)"
    r"|decoded|converted|int|float|read_prefix|grpc\.read_prefix"
)
"""Names of called functions that read JSON, YAML, protobuf, packed numbers and texts of numbers."""
_WITHOUT: Final = ("proto/", "view/")
"""Generated code, a tool that reads its own files, and output."""


def decoding() -> Iterator[str]:
    """The functions with such a call, as `module:function`; a method after its class."""
    for path in sorted(_AGENT.rglob("*.py")):
        name = path.relative_to(_AGENT).as_posix()
        if not name.startswith(_WITHOUT):
            module = name.removesuffix(".py").replace("/", ".")
            yield from (f"{module}:{each}" for each in sorted(_functions(path)))


def called(action: Callable[[], object]) -> set[str]:
    """The functions of `agent` that the action calls in this thread, named in the same way. What
    earlier calls left in caches is dropped, since a cached function is not called."""
    for name, module in list(sys.modules.items()):
        for member in vars(module).values() if name.startswith("agent.") else ():
            if isinstance(member, functools._lru_cache_wrapper):
                member.cache_clear()
    names: set[str] = set()
    for code in {called for _, called in code_pairs(action)}:
        if called_module := module_of(code).removeprefix("agent."):
            names.add(f"{called_module}:{code.co_qualname.replace('.<locals>', '')}")
    return names


def _functions(path: Path) -> set[str]:
    found: set[str] = set()
    waiting: list[tuple[ast.AST, str]] = [(ast.parse(path.read_text()), "")]
    while waiting:
        node, inside = waiting.pop()
        for each in ast.iter_child_nodes(node):
            name = inside
            if isinstance(each, ast.FunctionDef | ast.ClassDef):
                name = f"{inside}.{each.name}" if inside else each.name
            elif isinstance(each, ast.Call) and _DECODING.fullmatch(ast.unparse(each.func)):
                found.add(inside)
            waiting.append((each, name))
    return found - {""}
