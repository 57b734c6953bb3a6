"""Programs that are a kubelet, or contain one, and where they take its flags from.

k3s passes on the values of `--kubelet-arg`, or of `kubelet-arg` in its own files (docs.k3s.io,
Configuration Options); the kubelite of MicroK8s reads the flags from a file, one a line. k0s and
RKE2 start a kubelet as a process of its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agent.kubelet.configuration import ConfigurationError, flags

KUBELET: Final = "kubelet"
K3S: Final = "k3s"
KUBELITE: Final = "kubelite"
_NAMES: Final = (KUBELET, K3S, KUBELITE)
DEFAULT_ROOT_DIR: Final = "/var/lib/kubelet"
K3S_CONFIG: Final = "/etc/rancher/k3s/config.yaml"
KUBELITE_ARGS_FLAG: Final = "kubelet-args-file"

_ARG: Final = "kubelet-arg"
_ARG_FLAG: Final = f"--{_ARG}"
_K3S_COMMANDS: Final = frozenset({"server", "agent"})
_K3S_TITLES: Final = frozenset(f"{K3S} {command}" for command in _K3S_COMMANDS)
_ANSWERS: Final = frozenset({"version", "help", "h"})
"""Flags with which a kubelet only prints something."""


def program(word: str) -> str | None:
    """The program that the first word of a command line names."""
    name = os.path.basename(word)
    if name in _K3S_TITLES:
        return K3S
    return name if name in _NAMES else None


def hides_flags(words: Sequence[str]) -> bool:
    """k3s writes its name and its command, as one word, over its command line: flags may hold
    secrets (k3s pkg/cli/server/server.go and agent/agent.go, SetProcTitle)."""
    return os.path.basename(words[0]) in _K3S_TITLES


def runs_kubelet(words: Sequence[str]) -> bool:
    """Whether such a program runs a kubelet: k3s has many commands."""
    if hides_flags(words):
        return True
    if program(words[0]) == K3S:
        with_kubelet = len(words) > 1 and words[1] in _K3S_COMMANDS
        return with_kubelet and "--disable-agent" not in words
    return not _ANSWERS & flags(words).keys()


def own_words(words: Sequence[str]) -> list[str]:
    """The kubelet's command line, as far as its program's command line contains it."""
    if program(words[0]) == KUBELET:
        return list(words)
    handed = [
        word.partition("=")[2] if word.startswith(f"{_ARG_FLAG}=") else word
        for before, word in itertools.pairwise(words)
        if word.startswith(f"{_ARG_FLAG}=") or before == _ARG_FLAG
    ]
    return [words[0], *map(_flag, handed)]


def words_of_file(text: str) -> list[str]:
    """The flags in a kubelite's file: one a line; blank lines and lines with `#` are comments."""
    lines = (line.strip() for line in text.splitlines())
    return [word for line in lines if line and line[0] != "#" for word in line.split(None, 1)]


def words_of_k3s(contents: Sequence[Mapping[str, Any]], source: str) -> list[str]:
    """The kubelet's flags in the files of k3s, in their order: a later `kubelet-arg` replaces the
    earlier ones, a `kubelet-arg+` appends to them. Raises ConfigurationError."""
    handed: list[str] = []
    for content in contents:
        if _ARG in content:
            handed = _args(content[_ARG], source)
        handed += _args(content.get(f"{_ARG}+"), source)
    return list(map(_flag, handed))


def _args(value: Any, source: str) -> list[str]:
    many = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(each, str) for each in many):
        raise ConfigurationError(f"{source}: {_ARG}: must be a list of texts")
    return list(many)


def _flag(word: str) -> str:
    return f"--{word.lstrip('-')}"
