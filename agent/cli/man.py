"""Print the manual page topolet(1): `topolet man | man -l -`."""

from __future__ import annotations

import argparse
import importlib
from importlib import metadata

from agent.cli import options
from agent.cli.commands import COMMANDS
from agent.cli.options import Argument
from agent.view import format

USAGE = "topolet man"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no arguments."""


def run(arguments: argparse.Namespace) -> int:
    lines = [
        f'.TH TOPOLET 1 "" "topolet {metadata.version("topolet")}" "Topolet"',
        ".ad l",
        ".SH NAME",
        r"topolet \- node resource agent for Kubernetes",
        ".SH SYNOPSIS",
        r"\fBtopolet\fR \fICOMMAND\fR [\fIOPTIONS\fR]",
        ".SH COMMANDS",
    ]
    for name, text in COMMANDS.items():
        lines += [".TP", rf"\fB{_escaped(name)}\fR", _escaped(text)]
    for name in COMMANDS:
        module = importlib.import_module(f"agent.cli.{name.replace('-', '_')}")
        lines += [f".SH TOPOLET {_escaped(name.upper())}"]
        for paragraph in (module.__doc__ or "").split("\n\n"):
            lines += [".PP", _escaped(" ".join(paragraph.split()))]
        lines += [line for each in options.arguments_of(name) for line in _described(each)]
    lines += [
        ".SH FILES",
        ".TP",
        rf"\fI{_escaped(options.CONFIG)}\fR",
        "The options of all commands, in TOML.",
        ".SH EXIT STATUS",
        "0: success; 1: failure; 2: wrong usage. Some commands define others, see their sections.",
    ]
    try:
        print("\n".join(lines), flush=True)
    except OSError as error:
        return format.unwritten("man", error)
    return 0


def _described(argument: Argument) -> list[str]:
    if not argument.text:
        return []
    flags = ", ".join(rf"\fB{_escaped(each)}\fR" for each in argument.flags)
    value = rf"\fI{_escaped(argument.metavar)}\fR" if argument.metavar else ""
    return [".TP", f"{flags} {value}".strip(), _escaped(argument.text)]


def _escaped(text: str) -> str:
    """Text in which roff finds no request: a line must not begin with a dot or an apostrophe."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text
