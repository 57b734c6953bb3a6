"""Install the CRI proxy as a service of this host, and let its kubelet use it.

Without the proxy's own interpreter on the host, it is copied from where this command runs, such as
the image (with --root: the folder in which the container has the host's root). If a step fails, or
a pod does not run as before, everything is taken back; after a kill the next run does that. Exit
code 0: installed, or nothing to do; 1: everything is as before, or the message says what is not;
2: wrong usage.
"""

from __future__ import annotations

import argparse
import signal
from types import FrameType

from agent.cli import options
from agent.install.checks import CheckError
from agent.install.proxy import ERRORS, ProxyInstallation
from agent.model.settings.agent import InstallSettings
from agent.model.settings.options import SettingsError

SETTINGS = InstallSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the steps and do none")
    parser.add_argument("--undo", action="store_true", help="take every change of this host back")
    options.add_arguments(parser, SETTINGS)


def run(arguments: argparse.Namespace) -> int:
    try:
        installation = ProxyInstallation(options.load(arguments, SETTINGS), say)
    except SettingsError as error:
        return options.fail(error, 2)
    ended_by_signal()
    try:
        if arguments.dry_run:
            for line in installation.shown(remove=arguments.undo):
                say(line)
        elif arguments.undo:
            say("removed" if installation.remove() else "nothing is installed")
        else:
            say("installed" if installation.install() else "nothing to do: the kubelet uses it")
    except ERRORS as error:
        return options.fail(error)
    return 0


def say(line: str) -> None:
    print(line, flush=True)


def ended_by_signal() -> None:
    """The first SIGTERM, SIGINT or SIGHUP, as of a lost session, makes the current step fail, so
    that its run is taken back and its lock released; later ones are ignored, and so is SIGHUP below
    nohup."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in ends:
            signal.signal(each, signal.SIG_IGN)
        raise CheckError(f"ended by {signal.Signals(number).name}")

    ends = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    for each in ends:
        signal.signal(each, end)
