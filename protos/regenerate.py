"""Generates agent/proto from the .proto files beside this script; `--check` only compares.

Needs the `lint` extra (grpcio-tools, pinned: the generated code names its compiler's version).
"""

from __future__ import annotations

import argparse
import difflib
import pathlib
import sys
import tempfile

from grpc_tools import protoc

SOURCES = pathlib.Path(__file__).resolve().parent
TARGET = SOURCES.parent / "agent" / "proto"


def generate(folder: pathlib.Path) -> None:
    """Writes `NAME_pb2.py` and `NAME_pb2.pyi` of every .proto file into the folder."""
    names = sorted(path.name for path in SOURCES.glob("*.proto"))
    code = protoc.main(
        ["protoc", f"-I{SOURCES}", f"--python_out={folder}", f"--pyi_out={folder}", *names]
    )
    if code:
        sys.exit(f"protoc failed with exit code {code}")


def differences() -> list[str]:
    """Unified diff lines between what is committed and what the .proto files give."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        generate(folder)
        fresh = {path.name: path.read_text() for path in folder.iterdir()}
    committed = {path.name: path.read_text() for path in TARGET.glob("*_pb2.py*")}
    for file in sorted(fresh.keys() | committed.keys()):
        lines += difflib.unified_diff(
            committed.get(file, "").splitlines(),
            fresh.get(file, "").splitlines(),
            f"agent/proto/{file}",
            f"generated/{file}",
            lineterm="",
        )
    return lines


def main() -> int:
    """Exit code 1 when `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        generate(TARGET)
        return 0
    lines = differences()
    print("\n".join(lines) or "agent/proto is what protos/ gives")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
