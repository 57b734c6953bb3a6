"""The command `topolet`, also `python -m agent`. Each subcommand is a thin module of `agent.cli`,
imported only when it is called; those that run a process are in `cli.processes`.

A subcommand has `add_arguments(parser)` and `run(arguments) -> exit code`; dashes in its name are
underscores in that of its module; the options of its process are `SETTINGS`. A daemon lists its
flags without a value in `SWITCHES`: flags in their full form are then read without argparse, which
would keep a megabyte of the daemon's memory."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agent import VERSION
from agent.cli import options
from agent.cli.commands import COMMANDS, subcommand

if TYPE_CHECKING:
    import argparse

_WIDTH = 100
_NARROWEST = 40


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns its exit code (2 for wrong usage)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        print(f"topolet {VERSION}")
        return 0
    if not words or words[0] not in COMMANDS:
        return _usage(words)
    command = subcommand(words[0])
    arguments: Any = None
    if hasattr(command, "SWITCHES"):
        arguments = options.plain(words[1:], command.SETTINGS, command.SWITCHES)
    if arguments is None:
        arguments = _read(parser_of(words[0]), words[1:])
        # The parser refers to itself; without this a daemon would keep its memory for long.
        gc.collect()
    if hasattr(command, "SETTINGS"):
        for each in options.unknown_variables(command.SETTINGS, os.environ):
            print(f"topolet: {each}", file=sys.stderr)
    code: int = command.run(arguments)
    return code


def _read(parser: argparse.ArgumentParser, words: Sequence[str]) -> object:
    """The arguments. Exits after the help, and after a message about wrong ones."""
    try:
        return parser.parse_args(words)
    except (SystemExit, BrokenPipeError):
        try:
            sys.stdout.flush()
        except OSError as error:
            from agent.view import format

            sys.exit(format.unwritten("--help", error))
        raise


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of the arguments of a subcommand."""
    command, prog = subcommand(name), f"topolet {name}"
    parser = _parser(prog, command.__doc__, getattr(command, "USAGE", f"{prog} [OPTIONS]"))
    command.add_arguments(parser)
    return parser


def _usage(words: Sequence[str]) -> int:
    import argparse
    import textwrap

    lines = [
        textwrap.fill(f"  {name:<15} {text}", _columns(), subsequent_indent=" " * 18)
        for name, text in COMMANDS.items()
    ]
    parser = _parser(
        prog="topolet",
        usage="topolet COMMAND [OPTIONS]   (topolet COMMAND --help lists the options)",
        description="Node resource agent for Kubernetes.",
        epilog="commands:\n" + "\n".join(lines),
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), help=argparse.SUPPRESS)
    _read(parser, words[:1])
    parser.print_help(sys.stderr)
    return 2


def _parser(
    prog: str, description: str | None, usage: str | None = None, epilog: str | None = None
) -> argparse.ArgumentParser:
    import argparse

    width = _columns()
    if description and width < _WIDTH:
        import textwrap

        paragraphs = (" ".join(each.split()) for each in description.split("\n\n"))
        description = "\n\n".join(textwrap.fill(each, width) for each in paragraphs)

    def help_formatter(prog: str) -> argparse.HelpFormatter:
        return argparse.RawDescriptionHelpFormatter(prog, width=width)

    return argparse.ArgumentParser(prog, usage, description, epilog, formatter_class=help_formatter)


def _columns() -> int:
    """The width of the help: the variable COLUMNS, else the terminal's, at most _WIDTH. argparse
    imports shutil, with modules for archives, to find it out."""
    try:
        width = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size(1).columns or _WIDTH
    except (ValueError, OSError):
        width = _WIDTH
    return min(max(width, _NARROWEST), _WIDTH)


if __name__ == "__main__":
    sys.exit(main())
