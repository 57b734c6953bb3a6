"""How a hook server tells koord-runtime-proxy of itself: a file in a folder that the proxy watches.

The proxy reads a file that comes at once, and knows it by its inode. While it reads a new one, and
for as long as it can't parse that, every hooked call ends the whole proxy: so a file comes whole,
one that is right is not touched, and one that is to say something else is changed in place. That a
file went it notices once a minute; so a file is emptied of hooks before it is removed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from agent.host import files
from agent.model import jsontext
from agent.model.jsontext import JsonError
from agent.model.settings import SettingsError

HOOKS: Final = (
    "PreRunPodSandbox",
    "PreCreateContainer",
    "PreStartContainer",
    "PostStartContainer",
    "PreUpdateContainerResources",
    "PostStopContainer",
    "PostStopPodSandbox",
)
FILE: Final = "topolet.json"


class _Config(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    remote_endpoint: str = ""
    failure_policy: str = ""
    runtime_hooks: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_Config)


def hooks(text: str) -> tuple[str, ...]:
    """Names of hooks, separated by commas. Raises SettingsError that names the wrong one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in HOOKS:
            raise SettingsError(f"hook-server-hooks: no hook {name!r}, only {', '.join(HOOKS)}")
    if not names:
        raise SettingsError("hook-server-hooks: no hook at all")
    return names


class Registration:
    """Our file in `folder`; `policy` is what the proxy does when we do not answer or say no."""

    def __init__(
        self, folder: str, socket_path: str, policy: str, runtime_hooks: tuple[str, ...]
    ) -> None:
        self._folder = Path(folder)
        self._path = self._folder / FILE
        self._config = _Config(socket_path, policy, runtime_hooks)

    def write(self) -> None:
        """Replaces what an earlier agent left, if it says something else. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if _read(self._path) != self._config:
            files.replace(str(self._path), msgspec.json.encode(self._config), durable=False)

    def others(self) -> list[str]:
        """Files by which somebody else asks for hooks of ours: the proxy asks one of us, by
        chance."""
        ours = set(self._config.runtime_hooks)
        return sorted(
            path.name
            for path in self._folder.glob("*json")
            if path != self._path and ours & set(_read(path).runtime_hooks)
        )

    def withdraw(self) -> None:
        """From now on we are asked nothing. Raises OSError."""
        if not self._is_ours():
            return
        nothing = msgspec.json.encode(_Config(self._config.remote_endpoint, "Ignore"))
        with self._path.open("r+b", buffering=0) as file:
            file.write(nothing.ljust(self._path.stat().st_size))

    def remove(self) -> None:
        """Nothing is left. Raises OSError."""
        if self._is_ours():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _is_ours(self) -> bool:
        return _read(self._path).remote_endpoint == self._config.remote_endpoint


def _read(path: Path) -> _Config:
    """Empty where there is none that can be read."""
    try:
        return jsontext.decode(_decoder, path.read_bytes())
    except (OSError, JsonError):
        return _Config()
