"""Metrics of every frontend, under its own prefix."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from agent.hooks.agent_link import Notifier, SnapshotFile
from agent.hooks.requests import Outcomes
from agent.telemetry.plain import Metric

_WHY = ("hook", "qos", "reason")


class Counts(msgspec.Struct, frozen=True):
    """`prefix`: `topolet_proxy`."""

    prefix: str

    def counter(self, name: str, text: str, value: float) -> Metric:
        return self.counters(name, text, {(): value})

    def counters(
        self,
        name: str,
        text: str,
        values: Mapping[tuple[str, ...], float],
        labels: tuple[str, ...] = (),
    ) -> Metric:
        """By the values of the labels."""
        return Metric(f"{self.prefix}_{name}_total", "counter", text, values, labels)

    def gauge(self, name: str, text: str, value: float) -> Metric:
        return Metric(f"{self.prefix}_{name}", "gauge", text, {(): value})

    def shared(
        self, outcomes: Outcomes, notifier: Notifier, snapshots: SnapshotFile
    ) -> list[Metric]:
        """What policies decided, notifications, snapshot, and the process's memory."""
        snapshot = snapshots.current()
        return [
            self.counters(
                "failed_open",
                "Calls that went on though their hook could not do its work, and why.",
                outcomes.failed_open,
                _WHY,
            ),
            self.counters(
                "failed",
                "Calls that failed because their hook could not do its work, and why.",
                outcomes.failed,
                _WHY,
            ),
            self.counter("rings", "Datagrams to the agent.", notifier.sent),
            self.counter("rings_undelivered", "Datagrams nobody took.", notifier.undelivered),
            self.counter("snapshot_unreadable", "Torn snapshots ignored.", snapshots.unreadable),
            self.gauge(
                "snapshot_generation",
                "Number of the snapshot in force, 0 for none.",
                snapshot.generation if snapshot else 0,
            ),
            Metric(
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory size in bytes.",
                {(): _resident_bytes()},
            ),
        ]


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
