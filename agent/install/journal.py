"""The changes of `topolet install-proxy` on this host, written before each change is made."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.install.endpoint import FileChange
from agent.install.tree import FileState, HostTree

FOLDER: Final = "/var/lib/topolet"
PATH: Final = f"{FOLDER}/install.json"


class InstallJournalError(ValueError):
    """The journal can't be read; the message names it."""


class InstallJournal(msgspec.Struct, frozen=True):
    """What was installed on a node."""

    unit: str
    """The kubelet's service."""
    runtime: str
    """The endpoint of the runtime to which the proxy connects."""
    installed: tuple[FileChange, ...] = ()
    """The changes of all finished installations, each from the state before the first."""
    pending: tuple[FileChange, ...] = ()
    """The changes of a run that has not finished, which are undone next."""
    removes: bool = False
    """That run undoes all installations."""

    @property
    def finished(self) -> bool:
        """Whether the last run finished an installation."""
        return bool(self.installed) and not self.pending and not self.removes


def read(tree: HostTree) -> InstallJournal | None:
    """The journal, None where nothing is installed.

    Raises InstallJournalError, OSError."""
    state = tree.state(PATH)
    if state.text is None:
        return None
    try:
        return msgspec.json.decode(state.text, type=InstallJournal)
    except msgspec.MsgspecError as error:
        raise InstallJournalError(f"{PATH}: {error}") from None


def write(tree: HostTree, journal: InstallJournal) -> None:
    """Durably. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(journal)).decode() + "\n"
    # It contains copies of files that only root may be allowed to read.
    tree.put(PATH, FileState(text, mode=0o600))


def remove(tree: HostTree) -> None:
    """Removes the journal, and its folder if that is empty then."""
    tree.put(PATH, FileState())
    tree.remove_empty(FOLDER)
