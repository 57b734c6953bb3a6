"""Give back every cgroup value that the agent changed. Stop the agent first."""

from __future__ import annotations

import argparse
import sys

from agent.cgroup.hierarchy import CgroupError
from agent.cgroup.outcome import Change, State
from agent.cli import options
from agent.host.locks import LockedError
from agent.model.settings import SettingsError
from agent.node.restore import restore

OPTIONS = ("state_dir", "runtime_endpoint", "root", "cgroup_root")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    try:
        restored = restore(options.load(arguments))
    except SettingsError as error:
        return options.fail(error, 2)
    except (LockedError, CgroupError, OSError) as error:
        return options.fail(error)
    for change in restored.outcome.changes:
        if change.state in (State.GONE, State.RIGHT):
            continue
        print(_line(change), file=sys.stderr if change.state is State.FAILED else sys.stdout)
    if restored.unasked:
        print(f"topolet: not every container: {restored.unasked}", file=sys.stderr)
    print(f"{len(restored.outcome.having(State.WRITTEN))} cpusets given back")
    return 0 if restored.outcome.ok else 1


def _line(change: Change) -> str:
    note = f" ({change.note})" if change.note else ""
    if change.state is State.WRITTEN:
        return f"{change.group}: {change.old} -> {change.new or 'inherits'}{note}"
    return f"{change.group}: {change.state.value}{note}"
