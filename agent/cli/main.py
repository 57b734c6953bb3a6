"""The command `topolet`: one thin module a subcommand, imported only when called.

A subcommand's module has `add_arguments(parser)` and `run(arguments) -> exit code`; dashes in its
name are underscores.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "topology": "draw the machine: sockets, NUMA nodes, caches, cores, memory, distances",
    "agent": "run the node agent: discover, keep pools and cgroups right, report",
    "proxy": "run the CRI proxy in front of the container runtime",
    "nri": "run the NRI plugin in the container runtime, in the proxy's place",
    "conformance": "compare our decisions with vector files of the systems we replace",
    "doctor": "show what containers should run on beside what they run on",
    "kubelet-state": "show the kubelet's state files, or write a scheduler's CPUs into them",
    "restore": "give back every cgroup value that the agent changed",
}


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Of fixed width: asking the terminal imports shutil and its archives, half a megabyte."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns its exit code (2 for wrong usage)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in COMMANDS:
        return _usage(words)
    module = importlib.import_module(f"agent.cli.{words[0].replace('-', '_')}")
    parser = argparse.ArgumentParser(
        prog=f"topolet {words[0]}",
        description=module.__doc__,
        formatter_class=_HelpFormatter,
    )
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(words[1:]))
    return code


def _usage(words: Sequence[str]) -> int:
    lines = [f"  {name:<13} {text}" for name, text in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="topolet",
        usage="topolet COMMAND [OPTIONS]   (topolet COMMAND --help tells the options)",
        description="Node resource agent for Kubernetes.",
        epilog="commands:\n" + "\n".join(lines),
        formatter_class=_HelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS), help=argparse.SUPPRESS)
    parser.parse_args(words[:1])
    parser.print_help(sys.stderr)
    return 2
