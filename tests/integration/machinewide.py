"""Changes of the whole machine that several test runs make at the same time.

The first of them makes the change and the last one undoes it. A run that is killed undoes nothing:
the next one does so before it begins.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def change(
    name: str, make: Callable[[], Any], undo: Callable[[Any], None], folder: Path | None = None
) -> Iterator[None]:
    """The change is in force while any process is in a block with this name.

    `undo` gets the result of `make`, a JSON value. If `make` raises, it must have undone its own
    changes.
    """
    directory = folder or Path(tempfile.gettempdir())
    with (
        (directory / f"topolet-{name}.guard").open("a") as guard,
        (directory / f"topolet-{name}.made").open("a+") as made,
    ):
        with _locked(guard):
            if _alone(made):
                _undo(made, undo)
                made.write(json.dumps([make()]))
                made.flush()
            fcntl.flock(made, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with _locked(guard):
                if _alone(made):
                    _undo(made, undo)


@contextlib.contextmanager
def _locked(file: IO[str]) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _alone(made: IO[str]) -> bool:
    """Whether no other process is in the block; the file is then locked exclusively."""
    try:
        fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _undo(made: IO[str], undo: Callable[[Any], None]) -> None:
    made.seek(0)
    if text := made.read():
        undo(json.loads(text)[0])
    made.truncate(0)
