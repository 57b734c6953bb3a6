"""How long calls took, by method, in histograms."""

from __future__ import annotations

from typing import Final

from agent.telemetry.plain import Histogram, Histograms

_TOTAL_SECONDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600,
)  # fmt: skip
_SHARE_SECONDS: Final = (
    0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 0.5, 1, 5,
)  # fmt: skip


class Latencies:
    """As many series as methods were called (agent.runtime.meter bounds them)."""

    def __init__(self) -> None:
        self._total: dict[bytes, Histogram] = {}
        self._share: dict[bytes, Histogram] = {}

    def observe(self, path: bytes, seconds: float, share_seconds: float) -> None:
        """A call has ended."""
        total = self._total.get(path)
        if total is None:
            total = self._total[path] = Histogram(_TOTAL_SECONDS)
            self._share[path] = Histogram(_SHARE_SECONDS)
        total.observe(seconds)
        self._share[path].observe(share_seconds)

    def metrics(self) -> tuple[Histograms, Histograms]:
        return (
            Histograms(
                "topolet_proxy_call_seconds",
                "Calls from request to the end of the reply.",
                _named(self._total),
                ("method",),
            ),
            Histograms(
                "topolet_proxy_share_seconds",
                "What of a call's time the proxy took, waiting for the agent included.",
                _named(self._share),
                ("method",),
            ),
        )


def _named(series: dict[bytes, Histogram]) -> dict[tuple[str, ...], Histogram]:
    return {method_label(path): histogram for path, histogram in series.items()}


def method_label(path: bytes) -> tuple[str]:
    """A path of a client's making as a label's value."""
    return (path.decode(errors="backslashreplace")[:128],)
