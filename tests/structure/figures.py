"""Measures the modules of a package from their text. `__init__` files and generated code are not
counted.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

SHORT_LINES = 60

# A document, or a section of one: not below docs/, and no section of an RFC.
_DOCUMENT = re.compile(r"(?<![\w/])(?:docs/)?[a-z][a-z_-]*\.md\b|(?<!RFC \d{4} )§")
_NAMED = re.compile(r"`(?:agent\.)?([a-z]\w*(?:\.\w+)+)`")
_STRUCTS = ("Struct", "NamedTuple")


class Module(msgspec.Struct, frozen=True):
    """One file. `name` is dotted; `imports` are names of other modules of the package."""

    name: str
    text: str
    tree: ast.Module
    imports: frozenset[str]

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


class Figures(msgspec.Struct, frozen=True):
    """`offenders` has, by the name of a figure, the modules or classes behind it."""

    modules: int
    short_modules: int
    largest_module: int
    single_importer: int
    longest_chain: int
    duplicate_classes: int
    constructor_arguments: int
    citations: int
    missing_names: int
    code_lines: int
    offenders: Mapping[str, tuple[str, ...]]


def measure(package: Path, generated: frozenset[str]) -> Figures:
    """The figures of a package; `generated` are names of sub-packages to leave out."""
    modules = read(package, generated)
    importers = _importers(modules)
    single = [name for name in modules if len(importers[name]) == 1]
    short = [each.name for each in modules.values() if each.lines < SHORT_LINES]
    largest = max(modules.values(), key=lambda each: (each.lines, each.name))
    chain = longest_chain({each.name: each.imports for each in modules.values()})
    duplicates = duplicate_classes(modules.values())
    constructor, arguments = widest_constructor(modules.values())
    cited = [f"{each.name}: {line}" for each in modules.values() for line in citations(each.text)]
    missing = missing_names(modules, _package_texts(package))
    return Figures(
        modules=len(modules),
        short_modules=len(short),
        largest_module=largest.lines,
        single_importer=len(single),
        longest_chain=len(chain),
        duplicate_classes=len(duplicates),
        constructor_arguments=arguments,
        citations=len(cited),
        missing_names=len(missing),
        code_lines=sum(code_lines(each.text) for each in modules.values()),
        offenders={
            "short_modules": tuple(sorted(short)),
            "largest_module": (largest.name,),
            "single_importer": tuple(sorted(single)),
            "longest_chain": tuple(chain),
            "duplicate_classes": tuple(duplicates),
            "constructor_arguments": (constructor,),
            "citations": tuple(cited),
            "missing_names": tuple(missing),
        },
    )


def read(package: Path, generated: frozenset[str]) -> dict[str, Module]:
    """The modules by name."""
    texts = {}
    for file in sorted(package.rglob("*.py")):
        words = file.relative_to(package.parent).with_suffix("").parts
        if words[-1] != "__init__" and generated.isdisjoint(words):
            texts[".".join(words)] = file.read_text()
    trees = {name: ast.parse(text) for name, text in texts.items()}
    return {
        name: Module(name, texts[name], tree, frozenset(_imports(tree, texts.keys())) - {name})
        for name, tree in trees.items()
    }


def _imports(tree: ast.Module, known: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        else:
            continue
        yield from (name for name in names if name in known)


def _importers(modules: Mapping[str, Module]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for each in modules.values():
        for name in each.imports:
            found[name].add(each.name)
    return found


def longest_chain(imports: Mapping[str, frozenset[str]]) -> list[str]:
    """The longest path along imports. Raises ValueError where modules import each other."""
    in_progress: set[str] = set()

    @functools.cache
    def from_here(name: str) -> tuple[str, ...]:
        if name in in_progress:
            raise ValueError(f"{name} imports itself by way of others")
        in_progress.add(name)
        tails = [from_here(each) for each in sorted(imports[name])]
        in_progress.discard(name)
        return (name, *max(tails, key=len, default=()))

    return list(max((from_here(name) for name in sorted(imports)), key=len, default=()))


def duplicate_classes(modules: Iterable[Module]) -> list[str]:
    """Names of public classes that more than one module defines."""
    counts = Counter(
        node.name
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in counts.items() if count > 1)


def widest_constructor(modules: Iterable[Module]) -> tuple[str, int]:
    """The class whose `__init__` takes the most arguments, and their number. A struct that one
    constructor takes, and no other function, counts by its fields: it is a list of arguments under
    another name."""
    fields: dict[str, int] = {}
    constructors: list[tuple[str, list[str]]] = []
    takers: Counter[str] = Counter()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef):
                takers.update(set(_types(node)))
            if not isinstance(node, ast.ClassDef):
                continue
            if any(_last_word(base) in _STRUCTS for base in node.bases):
                fields[node.name] = sum(isinstance(each, ast.AnnAssign) for each in node.body)
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    constructors.append((f"{module.name}.{node.name}", _types(each)[1:]))

    def size(types: list[str]) -> int:
        return sum(fields.get(each, 1) if takers[each] == 1 else 1 for each in types)

    name, types = max(constructors, key=lambda each: (size(each[1]), each[0]), default=("", []))
    return name, size(types)


def _types(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    arguments_ = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
    return [_last_word(each.annotation) for each in arguments_]


def _last_word(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.rpartition(".")[2]
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
        return _last_word(node.left)  # `X | None`
    return ""


def citations(text: str) -> list[str]:
    """Lines of comments and docstrings that cite a document which is not below docs/."""
    found = []
    for line in text.splitlines():
        for each in _DOCUMENT.finditer(line):
            if not each.group().startswith("docs/"):
                found.append(line.strip())
                break
    return found


def _package_texts(package: Path) -> dict[str, str]:
    """The text of each `__init__`, by the name of its package."""
    return {
        ".".join(file.relative_to(package.parent).parent.parts): file.read_text()
        for file in sorted(package.rglob("__init__.py"))
    }


def missing_names(modules: Mapping[str, Module], package_texts: Mapping[str, str]) -> list[str]:
    """Names in backquotes that begin with a sub-package, and that no module has: `model.cpu.cpuset`
    or `cpuset.CpuSet`, from the package or from a package that has the module."""
    folders = {name.rpartition(".")[0] for name in modules}
    packages = {"" if "." not in each else each.partition(".")[2] for each in folders}
    packages |= {each.rpartition(".")[0] for each in packages}
    texts = {name.partition(".")[2]: module.text for name, module in modules.items()}
    tops = {name.partition(".")[0] for name in texts if "." in name}

    def exists(path: str) -> bool:
        words = path.split(".")
        for length in range(len(words), 0, -1):
            start, rest = ".".join(words[:length]), words[length:]
            if start in texts or start in packages:
                return not rest or re.search(rf"\b{rest[0]}\b", texts.get(start, "")) is not None
        return False

    found = []
    inits = {f"{name.partition('.')[2]}.__init__": text for name, text in package_texts.items()}
    for name, text in (texts | inits).items():
        folder = name.rpartition(".")[0]
        bases = ("", f"{folder}.", f"{folder.rpartition('.')[0]}.")
        for path in _NAMED.findall(text):
            if path.partition(".")[0] in tops and not any(exists(base + path) for base in bases):
                found.append(f"{name}: {path}")
    return found


def code_lines(text: str) -> int:
    """The number of lines with code: without comments, docstrings and empty lines."""
    documented = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*blank, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)
