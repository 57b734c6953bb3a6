"""What `topolet install-proxy` changed on this host, written before each change."""

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
    """`unit`: the kubelet's service; `runtime`: the endpoint behind the proxy. `installed`: the
    changes of installations that were finished, from before the first; `pending`: those that a run
    has begun and not finished, which are taken back next. `removes`: the run takes everything
    back."""

    unit: str
    runtime: str
    installed: tuple[FileChange, ...] = ()
    pending: tuple[FileChange, ...] = ()
    removes: bool = False

    @property
    def finished(self) -> bool:
        """Whether the last run was: an installation of nothing is not."""
        return bool(self.installed) and not self.pending and not self.removes


def read(tree: HostTree) -> InstallJournal | None:
    """None where nothing is installed. Raises InstallJournalError, OSError."""
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
    # It holds copies of files that may be root's alone.
    tree.put(PATH, FileState(text, mode=0o600))


def remove(tree: HostTree) -> None:
    """Also its folder, unless it holds other files."""
    tree.put(PATH, FileState())
    tree.remove_empty(FOLDER)
