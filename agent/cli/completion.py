"""Print the completion of all commands for bash or zsh.

For bash: `topolet completion bash > /etc/bash_completion.d/topolet`; for zsh: `topolet completion
zsh > DIR/_topolet` with a folder DIR of `fpath`.
"""

from __future__ import annotations

import argparse

from agent.cli.commands import COMMANDS, subcommand
from agent.view import format

USAGE = "topolet completion bash|zsh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), metavar="bash|zsh")


def run(arguments: argparse.Namespace) -> int:
    import shtab  # not for the help, and not for the documents about all commands

    parser = argparse.ArgumentParser("topolet")
    commands = parser.add_subparsers()
    for name, text in COMMANDS.items():
        command_parser = commands.add_parser(name, help=text)
        subcommand(name).add_arguments(command_parser)
        for action in command_parser._actions:
            values = str(action.metavar or "").split("|")
            if len(values) > 1:
                action.choices = values
            elif action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            if action.help == argparse.SUPPRESS:  # shown beside another flag
                action.help = None
    try:
        print(shtab.complete(parser, arguments.shell), flush=True)
    except OSError as error:
        return format.unwritten("completion", error)
    return 0
