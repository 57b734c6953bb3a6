"""Restore every cgroup value that the agent changed. Stop the agent first."""

from __future__ import annotations

import argparse
import os
import sys

from agent.cgroup.hierarchy import CgroupError
from agent.cgroup.order import GroupChange, ValueChange, WriteState
from agent.cli import options
from agent.host.locks import LockedError
from agent.model.settings.agent import RestoreSettings
from agent.model.settings.options import SettingsError
from agent.node.originals import restore
from agent.telemetry.audit import Trail
from agent.view.format import printable

SETTINGS = RestoreSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings = options.load(arguments, SETTINGS)
        if not os.path.exists(settings.state_dir):
            print(f"{settings.state_dir} does not exist: there is nothing to restore")
            return 0
        if not os.path.isdir(settings.state_dir):
            raise SettingsError(f"state-dir: {settings.state_dir} is not a folder")
        trail = Trail(settings.state_dir, "restore")
        restored = restore(settings, trail.append)
    except SettingsError as error:
        return options.fail(error, 2)
    except (LockedError, CgroupError, OSError) as error:
        return options.fail(error)
    changes: tuple[GroupChange | ValueChange, ...] = restored.outcome.changes
    for change in changes + restored.values.changes:
        if change.state in (WriteState.GONE, WriteState.RIGHT):
            continue
        print(
            printable(_line(change)),
            file=sys.stderr if change.state is WriteState.FAILED else sys.stdout,
        )
    for reason in restored.not_updated:
        text = printable(f"topolet: not every container is restored: {reason}")
        print(text, file=sys.stderr)
    cpusets, others = (
        len(each.having(WriteState.WRITTEN)) for each in (restored.outcome, restored.values)
    )
    print(f"{cpusets} cpusets restored" + (f", and {others} other values" if others else ""))
    return 0 if restored.outcome.ok and restored.values.ok and not restored.not_updated else 1


def _line(change: GroupChange | ValueChange) -> str:
    note = f" ({change.note})" if change.note else ""
    what = f"{change.group} {change.file}" if isinstance(change, ValueChange) else change.group
    if change.state is WriteState.WRITTEN:
        return f"{what}: {change.old or 'inherited'} -> {change.new or 'inherits'}{note}"
    return f"{what}: {change.state.value}{note}"
