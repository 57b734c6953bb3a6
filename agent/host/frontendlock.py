"""Which frontends run: relays, an NRI plugin or Koordinator's hook server, never two kinds at once,
as they would change the same requests. Relays share the lock: one drains while the next serves.
Plugins do not: two plugins that set one field make every creation fail (NRI: pkg/api/owners.go,
Conflict)."""

from __future__ import annotations

import os
import time
from typing import Final

from agent.host.locks import LockedError, SharedLock

_FILE: Final = "door.lock"
_POLL_SECONDS: Final = 0.05


def for_relay(state_dir: str) -> SharedLock:
    """Raises LockedError while a plugin has it, OSError."""
    return _taken(state_dir, "topolet proxy", alone=False)


def for_plugin(state_dir: str, patience_seconds: float) -> SharedLock:
    """Waits for a plugin that is ending. Raises LockedError when another frontend still has the
    lock then, OSError."""
    return _waited_for(state_dir, "topolet nri", patience_seconds)


def for_hook_server(state_dir: str, patience_seconds: float) -> SharedLock:
    """Waits as a plugin does. Raises LockedError, OSError."""
    return _waited_for(state_dir, "topolet agent's hook server", patience_seconds)


def for_restore(state_dir: str) -> SharedLock:
    """During a restore no plugin may add the values to the runtime's requests again; a relay sees
    none of those. Raises LockedError while a plugin runs, OSError."""
    return _taken(state_dir, "topolet restore", alone=False)


def _waited_for(state_dir: str, holder: str, patience_seconds: float) -> SharedLock:
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            return _taken(state_dir, holder, alone=True)
        except LockedError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_SECONDS)


def _taken(state_dir: str, holder: str, *, alone: bool) -> SharedLock:
    os.makedirs(state_dir, mode=0o755, exist_ok=True)
    try:
        return SharedLock(os.path.join(state_dir, _FILE), holder, alone=alone)
    except LockedError as error:
        raise LockedError(
            f"{error}: only one of relay, NRI plugin and hook server is on at a time"
        ) from None
