"""Checks the modules of a package by their text. `__init__` files and generated code are not
checked."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

# A document, or a section of one: not below docs/, and no section of an RFC.
_DOCUMENT = re.compile(r"(?<![\w/])(?:docs/)?[a-z][a-z_-]*\.md\b|(?<!RFC \d{4} )§")
_NAMED = re.compile(r"`(?:agent\.)?([a-z]\w*(?:\.\w+)+)`")


class Module(msgspec.Struct, frozen=True):
    """One file."""

    text: str
    tree: ast.Module
    imports: frozenset[str]
    """The names of other modules of the package."""


def problems(package: Path, generated: frozenset[str]) -> list[str]:
    """What is wrong with a package, a line each: modules that import each other, public classes of
    the same name, citations of documents outside the repository, and names of modules in texts that
    do not exist.

    `generated`: the names of sub-packages to leave out."""
    modules = read(package, generated)
    cycle = import_cycle({name: each.imports for name, each in modules.items()})
    return [
        *([f"modules import each other: {', '.join(cycle)}"] if cycle else []),
        *(f"two modules define {name}" for name in duplicate_classes(modules.values())),
        *(f"{name}: {line}" for name, each in modules.items() for line in citations(each.text)),
        *(f"{name} does not exist" for name in missing_names(modules, _package_texts(package))),
    ]


def read(package: Path, generated: frozenset[str]) -> dict[str, Module]:
    """The modules by name."""
    texts = {}
    for file in sorted(package.rglob("*.py")):
        words = file.relative_to(package.parent).with_suffix("").parts
        if words[-1] != "__init__" and generated.isdisjoint(words):
            texts[".".join(words)] = file.read_text()
    trees = {name: ast.parse(text) for name, text in texts.items()}
    return {
        name: Module(texts[name], tree, frozenset(_imports(tree, texts.keys())) - {name})
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


def import_cycle(imports: Mapping[str, frozenset[str]]) -> list[str]:
    """The modules that a cycle of imports leads to or that import it; empty if there is none."""
    left = dict(imports)
    while ready := [name for name in left if left.keys().isdisjoint(left[name])]:
        for name in ready:
            del left[name]
    return sorted(left)


def duplicate_classes(modules: Collection[Module]) -> list[str]:
    """Names of public classes that more than one module defines."""
    counts = Counter(
        node.name
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in counts.items() if count > 1)


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
