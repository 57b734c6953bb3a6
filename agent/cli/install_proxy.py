"""Install the CRI proxy as a systemd service of this host, and configure the kubelet to use it.

The service has its own copy of the interpreter that runs this command, for example the one of the
image (with --root: the folder where the container has the host's root mounted). If a step fails, or
a container that ran before does not run after it, the command undoes all its changes; after a kill
the next run undoes them. Exit code 0: the proxy is installed, or was before; 1: every change is
undone, or the message says which is not; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import signal
from types import FrameType

from agent.cli import options
from agent.install.installer import CheckError
from agent.install.proxy import ERRORS, ProxyInstallation
from agent.model.settings.agent import InstallSettings
from agent.model.settings.options import SettingsError
from agent.view.format import printable

SETTINGS = InstallSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the steps without doing them")
    parser.add_argument("--undo", action="store_true", help="undo every change on this host")
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        installation = ProxyInstallation(options.load(arguments, SETTINGS), print_line)
    except SettingsError as error:
        return options.fail(error, 2)
    fail_on_signals()
    try:
        if arguments.dry_run:
            for line in installation.described(remove=arguments.undo):
                print_line(line)
        elif arguments.undo:
            print_line("removed" if installation.remove() else "nothing is installed")
        else:
            print_line(
                "installed" if installation.install() else "nothing to do: the kubelet uses it"
            )
    except ERRORS as error:
        return options.fail(error)
    return 0


def print_line(line: str) -> None:
    print(printable(line), flush=True)


def fail_on_signals() -> None:
    """Makes the current step fail with CheckError at the first SIGTERM, SIGINT or SIGHUP (a lost
    session), so that the run is undone and its lock released. Later signals are ignored, and so is
    SIGHUP if the command was started by nohup."""

    def fail(number: int, frame: FrameType | None) -> None:
        for each in ending:
            signal.signal(each, signal.SIG_IGN)
        raise CheckError(f"ended by {signal.Signals(number).name}")

    ending = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending.append(signal.SIGHUP)
    for each in ending:
        signal.signal(each, fail)
