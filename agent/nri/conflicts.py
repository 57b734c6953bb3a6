"""Other writers of the cpusets that are ours to decide: found by what they do, and named.

Two plugins that set one field make the runtime fail the container (NRI: pkg/api/owners.go,
Conflict), and only the caller learns their names. So the other processes that are connected to the
plugins' socket are named too.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

_BOTH: Final = re.compile(r'plugins "([^"]+)" and "([^"]+)" both tried to set (\w+)')
ANY: Final = "of its parent"
_LOG_AGAIN_SECONDS: Final = 60.0
_LOOK_AGAIN_SECONDS: Final = 10.0

log = logging.getLogger(__name__)


def named(text: str, own: str) -> str | None:
    """The other plugin that an error of the runtime names, None for another error; our own name for
    a second session of ours."""
    found = _BOTH.search(text)
    if found is None:
        return None
    others = [name for name in found.groups()[:2] if name != own]
    return others[0] if others else own


class Conflicts:
    """`own`: our plugin's name in the runtime (`10-topolet`). `others`: the processes that may be
    other plugins now."""

    def __init__(self, own: str, others: Callable[[], Sequence[str]]) -> None:
        self.found: Counter[tuple[str, ...]] = Counter()
        """By kind (`error`, `undone`, `changed`) and name, "" where the plugin is unknown."""
        self._own = own
        self._others = others
        self._told: dict[tuple[str, str], float] = {}
        self._names = ""
        self._looked_at = -_LOOK_AGAIN_SECONDS

    def error(self, title: str, text: str) -> None:
        """The runtime refused a change of a container."""
        name = named(text, self._own)
        if name is not None:
            self._note("error", name, f"{title}: plugin {name} sets what we set: {text}")

    def undone(self, title: str) -> None:
        """A container that we adjusted was not made after all."""
        names = self._suspects()
        text = f"{title}: was not made after our answer"
        if names:
            text += f"; other plugins are on, and one of them may set its CPUs too: {names}"
        self._note("undone", names, text)

    def changed(self, title: str, ours: str, found: str) -> None:
        """A container has other CPUs than the last request asked for; "" for those of its
        parent."""
        names = self._suspects()
        by = f"; perhaps by {names}" if names else ""
        self._note(
            "changed", names, f"{title}: CPUs {ours or ANY} were changed to {found or ANY}{by}"
        )

    def _suspects(self) -> str:
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_AGAIN_SECONDS:
            self._looked_at = now
            self._names = ", ".join(self._others())
        return self._names

    def _note(self, kind: str, name: str, text: str) -> None:
        key = (kind, name)
        self.found[key] += 1
        now = time.monotonic()
        if now - self._told.get(key, -_LOG_AGAIN_SECONDS) >= _LOG_AGAIN_SECONDS:
            self._told[key] = now
            log.warning("%s", text)
