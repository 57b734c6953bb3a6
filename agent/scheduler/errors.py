"""What keeps a process of this package from starting."""

from __future__ import annotations


class StartError(RuntimeError):
    """Something that it needs from its beginning is not there; the message names it."""
