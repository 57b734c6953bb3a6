"""The registration of a hook server with koord-runtime-proxy: a file in a folder that the proxy
watches.

The proxy reads a new file at once, and knows it by its inode. While it reads a new one, and as long
as it can't parse it, every hooked call ends the whole proxy: so a file appears complete, a correct
one is not touched, and a wrong one is changed in place. The proxy notices a removed file once a
minute; so a file is emptied of hooks before it is removed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from agent.host import files
from agent.model import bounds
from agent.model.bounds import JsonError
from agent.model.settings.options import SettingsError

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
    """Our file in `folder`; `policy`: what the proxy does when the server fails or does not
    answer."""

    def __init__(
        self, folder: str, socket_path: str, policy: str, runtime_hooks: tuple[str, ...]
    ) -> None:
        self._folder = Path(folder)
        self._path = self._folder / FILE
        self._config = _Config(socket_path, policy, runtime_hooks)

    def write(self) -> None:
        """Replaces the file of an earlier agent, if it differs. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if _read(self._path) != self._config:
            files.replace(str(self._path), msgspec.json.encode(self._config), durable=False)

    def others(self) -> list[str]:
        """Files by which another server registers the same hooks: the proxy then calls one of them,
        by chance."""
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
        return bounds.decode(_decoder, path.read_bytes())
    except (OSError, JsonError):
        return _Config()
