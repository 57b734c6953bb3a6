"""Check a file of options: that each option exists, and that its process can use the value. Exit
code 0: the file is valid; 2: it is not."""

from __future__ import annotations

import argparse
import importlib
from typing import Final

from agent.cli import options
from agent.model.settings.options import SettingsError
from agent.view.format import count

_PROCESSES: Final = ("agent", "proxy", "nri")
"""Subcommands that check more of their options than the types do."""

USAGE = "topolet config check [FILE]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check",), metavar="check")
    text = f"TOML file of options ({options.CONFIG})"
    parser.add_argument("file", nargs="?", metavar="FILE", default=options.CONFIG, help=text)


def run(arguments: argparse.Namespace) -> int:
    path: str = arguments.file
    try:
        raw = options.read(path)
        options.check(raw, path)
        for name in _PROCESSES:
            process = importlib.import_module(f"agent.cli.{name}")
            process.check(options.load(argparse.Namespace(config=path), process.SETTINGS))
    except SettingsError as error:
        return options.fail(error, 2)
    print(f"{path}: {count(len(raw), 'option')}, all valid")
    return 0
