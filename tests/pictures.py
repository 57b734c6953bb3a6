"""The output of `topolet topology` for each machine of tests/data/sysfs: with 80 and 120 columns,
and with 80 columns without Unicode. The files are in `tests/data/pictures`.

    python -m tests.pictures     writes the files; review the differences
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Final
from unittest import mock

from agent.__main__ import main
from tests.fixtures.trees import MACHINES, unpack

FOLDER: Final = MACHINES.with_name("pictures")
KINDS: Final = ((80, "utf-8"), (120, "utf-8"), (80, "ascii"))
"""Columns and encoding of each picture in a file."""


def names() -> list[str]:
    """The machines."""
    return sorted(path.name.removesuffix(".tar.bz2") for path in MACHINES.glob("*.tar.bz2"))


def drawn(root: str) -> str:
    """All pictures of the machine below `root`, each with its command above it."""
    return "\n".join(_drawn(root, columns, encoding) for columns, encoding in KINDS)


def _drawn(root: str, columns: int, encoding: str) -> str:
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    words = f"COLUMNS={columns} PYTHONIOENCODING={encoding}"
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(columns)}),
        contextlib.redirect_stdout(written),
    ):
        code = main(["topology", f"--root={root}"])
    written.seek(0)
    return f"$ {words} topolet topology\n{written.read()}" + (f"exit code {code}\n" if code else "")


def _write() -> int:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name in names():
        with tempfile.TemporaryDirectory() as folder:
            (FOLDER / f"{name}.txt").write_text(drawn(unpack(name, Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(_write())
