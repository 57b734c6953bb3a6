"""Settings read again while the agent runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from agent.model import exclusion
from agent.model import settings as options
from agent.model.exclusion import ExclusionError, Patterns
from agent.model.settings import Settings, SettingsError
from agent.node.look import Node

log = logging.getLogger(__name__)

LIVE: Final = ("exclude", "period_seconds", "full_pass_seconds", "log_level")
"""What may change without a restart."""


def excluded(settings: Settings) -> Patterns:
    """Raises SettingsError."""
    try:
        return exclusion.parse(settings.exclude)
    except ExclusionError as error:
        raise SettingsError(f"exclude: {error}") from None


def reloaded(old: Settings, read_again: Callable[[], Settings], node: Node) -> Settings:
    """The settings in force from now on: a fault leaves the old ones, and what can't change is
    told."""
    try:
        new = read_again()
        node.exclude = excluded(new)
    except SettingsError as error:
        log.error("the settings stay as they were: %s", error)
        return old
    logging.getLogger().setLevel(new.log_level.upper())
    now = msgspec.structs.replace(old, **{name: getattr(new, name) for name in LIVE})
    fixed = [
        field.encode_name
        for field in options.options()
        if getattr(now, field.name) != getattr(new, field.name)
    ]
    if fixed:
        log.warning("changed, but only with a restart: %s", ", ".join(fixed))
    log.info("the settings were read again")
    return now
