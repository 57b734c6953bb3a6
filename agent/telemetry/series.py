"""Declarations of metrics, which all processes use and docs/monitoring.md lists."""

from __future__ import annotations

from typing import Final

import msgspec

from agent import VERSION


class Series(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: str
    """counter, gauge, histogram or summary, as the Prometheus text format names it."""
    text: str
    labels: tuple[str, ...] = ()
    """The names of its labels, in the order of their values."""


class Declarations:
    """The metrics of one process, in the order of their declaration. Their names begin with the
    prefix, such as `topolet_proxy`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._all: list[Series] = []

    @property
    def all(self) -> tuple[Series, ...]:
        return tuple(self._all)

    def counter(self, name: str, text: str, *labels: str) -> Series:
        """`name` without `_total`."""
        return self._add(f"{name}_total", "counter", text, labels)

    def gauge(self, name: str, text: str, *labels: str) -> Series:
        return self._add(name, "gauge", text, labels)

    def histogram(self, name: str, text: str, *labels: str) -> Series:
        return self._add(name, "histogram", text, labels)

    def summary(self, name: str, text: str, *labels: str) -> Series:
        return self._add(name, "summary", text, labels)

    def _add(self, name: str, kind: str, text: str, labels: tuple[str, ...]) -> Series:
        made = Series(f"{self.prefix}_{name}", kind, text, labels)
        self._all.append(made)
        return made


BUILD_INFO: Final = Series(
    "topolet_build_info",
    "gauge",
    "1, with the version of Topolet and its process.",
    ("version", "process"),
)


def build_labels(process: str) -> tuple[str, str]:
    """The values of the labels of BUILD_INFO for the process of a subcommand."""
    return VERSION, process
