"""Makes the pictures of the documents, docs/pictures/, from the output of the tools.

    python -m docs.pictures [NAME...]     writes the pictures; without names: all
    python -m docs.pictures --check       compares the reproducible pictures

Terminals become SVG. The page needs Debian's chromium-headless-shell; the tour needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final
from unittest import mock

from agent.view import terminal
from agent.view.terminal import Ability
from agent.view.top.frame import frame
from agent.view.top.values import ScreenState
from tests.fixtures.browser import browsing
from tests.fixtures.fleet import gpu_pod, owner
from tests.fixtures.page import ServedNode, served
from tests.fixtures.screen import EmulatedTerminal, topolet
from tests.scheduler.page_scene import HOLDER, TOO_LARGE, PageScene
from tests.view.top import nodes

FOLDER: Final = Path(__file__).with_name("pictures")
_ROOT: Final = FOLDER.parents[1]
_LOAD_SECONDS: Final = 4.0
"""The page requests loads once a second and needs two replies to show a load."""

# A cell and the frame around all of them, in units of the SVG.
_CELL_WIDTH, _CELL_HEIGHT, _MARGIN, _BASELINE = 8.4, 17, 16, 13
_FOREGROUND, _BACKGROUND, _FAINT = "#d7dae0", "#16191f", "#6b7280"
_FONTS: Final = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_COLOURS: Final = {
    30: "#4b5263", 31: "#ef6b73", 32: "#8ccf7e", 33: "#e5c76b",
    34: "#67b0e8", 35: "#c47fd5", 36: "#6cbfbf", 37: "#d7dae0",
}  # fmt: skip
"""By the numbers of SGR, which terminals define."""
_SGR: Final = re.compile("\x1b\\[([0-9;]*)m")
_OTHER_SEQUENCES: Final = re.compile("\x1b(\\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])|\r")


class _Style:
    """The attributes that SGR sequences have set."""

    def __init__(self) -> None:
        self.foreground, self.background = _FOREGROUND, ""
        self.bold = self.faint = self.reverse = False

    def apply(self, numbers: Sequence[int]) -> None:
        rest = list(numbers)
        while rest:
            number = rest.pop(0)
            if number in (38, 48) and rest[:1] == [5] and len(rest) > 1:
                colour = _xterm_colour(rest[1])
                rest = rest[2:]
                if number == 38:
                    self.foreground = colour
                else:
                    self.background = colour
            elif number == 0:
                self.__init__()  # type: ignore[misc]
            elif number in (1, 2, 7):
                self.bold, self.faint, self.reverse = (
                    self.bold or number == 1,
                    self.faint or number == 2,
                    self.reverse or number == 7,
                )
            elif number in (22, 27):
                self.bold, self.faint = self.bold and number != 22, self.faint and number != 22
                self.reverse = self.reverse and number != 27
            elif number % 10 == 9:
                self.foreground, self.background = (
                    (_FOREGROUND, self.background) if number == 39 else (self.foreground, "")
                )
            elif number in _COLOURS or number - 60 in _COLOURS:
                self.foreground = _COLOURS[number if number in _COLOURS else number - 60]
            elif number - 10 in _COLOURS or number - 70 in _COLOURS:
                self.background = _COLOURS[number - 10 if number - 10 in _COLOURS else number - 70]

    @property
    def shown(self) -> tuple[str, str, bool]:
        """Foreground, background ("" for that of the picture), and whether the text is bold."""
        foreground = _FAINT if self.faint and self.foreground == _FOREGROUND else self.foreground
        if self.reverse:
            return self.background or _BACKGROUND, foreground, self.bold
        return foreground, self.background, self.bold


def _xterm_colour(number: int) -> str:
    """One of the 256 colours of xterm."""
    if number < 16:
        return _COLOURS[30 + number % 8]
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    levels = (0, 95, 135, 175, 215, 255)
    number -= 16
    return "#" + "".join(
        f"{levels[each]:02x}" for each in (number // 36, number // 6 % 6, number % 6)
    )


def as_svg(text: str, title: str) -> str:
    """The text of a terminal, with its colours."""
    lines = text.rstrip("\n").split("\n")
    columns = max(len(_SGR.sub("", line)) for line in lines)
    width = round(columns * _CELL_WIDTH + 2 * _MARGIN)
    height = len(lines) * _CELL_HEIGHT + 2 * _MARGIN
    style = _Style()
    parts = []
    for row, line in enumerate(lines):
        column = 0
        pieces = _SGR.split(line)
        for number, piece in enumerate(pieces):
            if number % 2:
                style.apply([int(each or 0) for each in piece.split(";")])
                continue
            parts += _run(piece, row, column, style)
            column += len(piece)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" '
            f'font-family="{_FONTS}" font-size="14">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{_BACKGROUND}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _run(piece: str, row: int, column: int, style: _Style) -> Iterator[str]:
    """One text element for each word: positions do not depend on the font of the reader."""
    foreground, background, bold = style.shown
    y = _MARGIN + row * _CELL_HEIGHT
    if background and piece:
        x = round(_MARGIN + column * _CELL_WIDTH, 1)
        width = round(len(piece) * _CELL_WIDTH, 1)
        yield f'<rect x="{x}" y="{y}" width="{width}" height="{_CELL_HEIGHT}" fill="{background}"/>'
    weight = ' font-weight="bold"' if bold else ""
    for match in re.finditer(r"\S+( \S+)*", piece):
        x = round(_MARGIN + (column + match.start()) * _CELL_WIDTH, 1)
        length = round(len(match[0]) * _CELL_WIDTH, 1)
        yield (
            f'<text x="{x}" y="{y + _BASELINE}" textLength="{length}" '
            f'lengthAdjust="spacingAndGlyphs" fill="{foreground}"{weight}>{escape(match[0])}</text>'
        )


def terminal_output(words: Sequence[str], columns: int, rows: int) -> str:
    """The output of the command on a terminal of this size."""
    with EmulatedTerminal(words, columns, rows, {"LANG": "C.UTF-8"}) as running:
        running.ended()
        return running.received.decode(errors="replace")


def _plain(output: str) -> str:
    """The output without the escape sequences that are not colours."""
    return _OTHER_SEQUENCES.sub(lambda found: found[0] if found[0].endswith("m") else "", output)


@contextlib.contextmanager
def _node() -> Iterator[ServedNode]:
    """A machine with two sockets, eight cards and pods of each class."""
    with tempfile.TemporaryDirectory() as folder:
        node = ServedNode(Path(folder))
        for name, qos in (("web", "LS"), ("api", "LS"), ("cache", "LS")):
            node.pod(name, qos)
        node.reconcile()
        for name, qos, cpus in (
            ("db", "LSE", "0-3,32-35"),
            ("train-0", "LSR", "8-11,40-43"),
            ("train-1", "LSR", "24-25,56-57"),
        ):
            node.pod(name, qos, cpus)
            node.reconcile()
        node.reconcile()
        node.cards = {2: ("ns/train-0",), 3: ("ns/train-0",), 6: ("ns/train-1",)}
        yield node


def topology() -> str:
    """`topolet topology --owners` of a machine with pods."""
    with _node() as node:
        words = ("--owners", f"--root={node.world.root}", f"--state-dir={node.world.state}")
        output = terminal_output(topolet("topology", *words), 110, 50)
    picture = _plain(output).partition("\n\nDevices\n")[0]
    return as_svg(picture, "topolet topology --owners")


def top() -> str:
    """`topolet top` of a machine with 64 CPUs, with fixed values."""
    with _zone("UTC"):
        lines = frame(nodes.node(2, 2, 2, 4, 2), None, ScreenState(), 110, 30, Ability())
    return as_svg("\n".join(terminal.encoded(line, 256) for line in lines), "topolet top")


@contextlib.contextmanager
def _zone(name: str) -> Iterator[None]:
    with mock.patch.dict(os.environ, {"TZ": name}):
        time.tzset()
        yield
    time.tzset()


@contextlib.contextmanager
def _changing_loads(node: ServedNode) -> Iterator[None]:
    """Changes the loads of the CPUs in a thread."""
    node.busy = {cpu: (cpu * 37 % 100) / 100 for cpu in range(node.shape.cpus) if cpu % 5}
    ended = threading.Event()

    def change() -> None:
        while not ended.wait(0.3):
            node.load()

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def tour() -> str:
    """`make run`, after the LSE pod is created and another program has changed a cpuset."""
    with tempfile.TemporaryDirectory(prefix="topolet-") as folder:
        output = terminal_output(
            [sys.executable, "-m", "demo", f"--dir={folder}", "--seconds=7"], 112, 34
        )
        frames = output.partition("\x1b[?1049l")[0].split("\x1b[H")
        picture = _plain(frames[-1]).replace(folder, "var")
    return as_svg(picture, "make run")


def page() -> bytes:
    """The page of a node, in a browser."""
    with _node() as node, _changing_loads(node), served(node) as server:
        node.use = {2: 91, 3: 87, 6: 40}
        ready = "document.querySelectorAll('#pods tr').length === 6"
        return _screenshot(f"http://localhost:{server.port}/page", ready)


def cluster() -> bytes:
    """The scheduler's page of a cluster."""
    scene = PageScene(200)
    for number in range(12):
        scene.place(gpu_pod(1 + number % 4), f"train-{number}")
        scene.place(owner(3 + number % 5, 2), f"web-{number}")
    scene.place(TOO_LARGE, "huge")
    server = scene.server()
    server.start()
    try:
        ready = "document.querySelectorAll('#nodes tr').length > 20"
        return _screenshot(f"http://localhost:{server.port}/page#holder={HOLDER}", ready)
    finally:
        server.close()


def _screenshot(address: str, ready: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder, browsing(Path(folder)) as browser:
        tab = browser.tab()
        tab.resize(1280, 860, dark=True)
        tab.open(address)
        tab.until(ready)
        tab.events(_LOAD_SECONDS)
        picture = Path(folder) / "page.png"
        tab.screenshot(picture)
        return picture.read_bytes()


REPRODUCIBLE: Final[dict[str, Callable[[], str]]] = {"topology.svg": topology, "top.svg": top}
CHANGING: Final[dict[str, Callable[[], str | bytes]]] = {
    "tour.svg": tour,
    "page.png": page,
    "cluster.png": cluster,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.pictures", description=__doc__)
    all_ = {**REPRODUCIBLE, **CHANGING}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(all_))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)  # Simulated containers stay on the CPUs of owners.
    code = 0
    for name in arguments.names or (REPRODUCIBLE if arguments.check else all_):
        if name not in all_:
            parser.error(f"there is no picture {name}")
        made = all_[name]()
        content = made.encode() if isinstance(made, str) else made
        path = FOLDER / name
        if not arguments.check:
            path.write_bytes(content)
        elif not path.exists() or path.read_bytes() != content:
            print(f"{path.relative_to(_ROOT)} differs from the tools: python -m docs.pictures")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
