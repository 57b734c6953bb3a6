"""`python -m tests.faults.kills --count N`: kills the agent N times while pods start and end.

The agent is the real command on a simulated node. The node has two sockets of 8 CPUs, cgroups v1 or
v2 as files (`--real`: this machine's CPUs and cgroups), and pods that start, end, have invalid
annotations and change their class. Some kills come at a random moment, most before a system call
that changes something. The state is checked after the kill, and again after the first pass of the
next agent. Each series of kills ends with `topolet restore`, which is killed too.

Prints one JSON object: `kills`, the errors by kind, and by `points` where the agent was killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from agent.cgroup.journal import Journal
from agent.model.cpu.cpuset import CpuSet, CpuSetError
from agent.model.notifications import SnapshotRequest
from tests.faults.launcher import Launcher
from tests.faults.node import Pod, SimulatedNode, large_machine, this_machine

KILLS_PER_SERIES = 50
MAX_RESTORE_KILLS = 5
MOMENT_SECONDS = 0.03
SANDBOX_SECONDS = 30.0
VIOLATIONS = ("lost_pins", "overlaps", "illegal", "unjournalled", "not_restored", "crashes")


class Tally:
    """`violations`: by kind. `checked`: the number of comparisons of an owner's group."""

    def __init__(self) -> None:
        self.kills = self.restore_kills = self.checked = 0
        self.violations = Counter(dict.fromkeys(VIOLATIONS, 0))
        self.points: Counter[str] = Counter()
        self.findings: list[str] = []

    def add(self, kind: str, what: str) -> None:
        self.violations[kind] += 1
        self.findings.append(f"kill {self.kills}: {kind}: {what}")

    @property
    def clean(self) -> bool:
        return not self.violations.total()


class KillSeries:
    """One node, from the start of the first agent to the restore."""

    def __init__(
        self, node: SimulatedNode, launcher: Launcher, rng: random.Random, tally: Tally
    ) -> None:
        self._node = node
        self._launcher = launcher
        self._rng = rng
        self._tally = tally
        self._accepted: dict[str, CpuSet] = {}
        self._settled_groups: set[str] = set()
        self._steps_to_first_pass = 30
        self._steps_of_pass = 10

    def run(self, kills: int) -> None:
        node, rng, launcher = self._node, self._rng, self._launcher
        for _ in range(kills):
            for _ in range(rng.randint(0, 3)):
                node.churn(rng)
            early = rng.random() < 0.4
            start = time.monotonic_ns()
            kill_at = rng.randint(1, self._steps_to_first_pass + 1) if early else 0
            launcher.start(node.agent_words, node.cgroups, kill_at)
            if node.wait_for_pass(start, lambda: launcher.running):
                self._steps_to_first_pass = launcher.steps.count
                self._check_settled()
                self._churn_until_kill()
            self._kill_agent()
        self._restore()

    def _churn_until_kill(self) -> None:
        node, rng, steps = self._node, self._rng, self._launcher.steps
        if rng.random() < 0.3:
            end = time.monotonic() + rng.uniform(0, MOMENT_SECONDS)
            while time.monotonic() < end:
                node.churn(rng)
                node.notify(SnapshotRequest())
                time.sleep(rng.uniform(0, MOMENT_SECONDS / 10))
            return
        before = steps.count
        steps.kill_at = before + rng.randint(1, self._steps_of_pass + 1)
        for _ in range(rng.randint(1, 3)):
            node.churn(rng)
        notified = time.monotonic_ns()
        node.notify(SnapshotRequest())
        if node.wait_for_pass(notified, lambda: self._launcher.running):
            self._steps_of_pass = steps.count - before
            self._check_settled()

    def _kill_agent(self) -> None:
        launcher = self._launcher
        launcher.kill()
        code = launcher.ended()
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the agent ended by itself ({code}):\n{launcher.log()[-4000:]}")
        self._tally.kills += 1
        self._tally.points[launcher.steps.killed_before or "any moment"] += 1
        self._check_after_kill()

    def _check_after_kill(self) -> None:
        """Checks that no owner lost a CPU or shares it, that the kernel accepts the value of each
        group, and that the journal has the original of each changed group."""
        node = self._node
        unchanged = node.pods.keys() - node.changed_uids
        for uid, cpus in self._accepted.items():
            if uid in unchanged:
                self._check_owner(node.pods[uid], cpus, self._settled_groups)
                self._check_others(node.pods[uid], cpus, unchanged, self._settled_groups)
        for each in node.cgroups.illegal():
            self._tally.add("illegal", each)
        journal = Journal(node.state / "journal")
        for each in journal.problems:
            self._tally.add("unjournalled", each)
        for group in node.cgroups.groups():
            originals = node.originals[group]
            journalled = journal.originals.get(group)
            if journalled is not None and CpuSet.parse(journalled.cpus) not in originals:
                self._tally.add(
                    "unjournalled", f"{group}: {journalled.cpus!r} is not of {originals}"
                )
            if journalled is None and (own := node.cgroups.own(group)) not in originals:
                self._tally.add("unjournalled", f"{group} has {own}, not one of {originals}")
        if node.snapshot() is None and (node.state / "snapshot.json").exists():
            self._tally.add("illegal", "the snapshot is torn")
        self._accept_published()

    def _accept_published(self) -> None:
        """Takes over the owners of the killed agent whose claims have not changed."""
        node = self._node
        snapshot = node.snapshot()
        for owner in snapshot.owners if snapshot else ():
            pod = node.pods.get(owner.uid)
            if pod and pod.qos_class == owner.qos and _claims(pod, owner.cpus):
                self._accepted[owner.uid] = owner.cpus
                node.changed_uids.discard(owner.uid)

    def _check_settled(self) -> None:
        """Checks the state after a pass without further changes."""
        node = self._node
        snapshot = node.snapshot()
        assert snapshot is not None
        owners = {each.uid: each.cpus for each in snapshot.owners}
        for uid in self._accepted.keys() & node.pods.keys() - node.changed_uids:
            if owners.get(uid) != self._accepted[uid]:
                self._tally.add("lost_pins", f"{uid} owns {owners.get(uid)} now")
        groups = set(node.cgroups.groups())
        for uid, cpus in owners.items():
            if pod := node.pods.get(uid):
                self._check_owner(pod, cpus, groups)
                self._check_others(pod, cpus, node.pods.keys(), groups)
        self._settled_groups = groups
        node.changed_uids.clear()
        # An owner with a refused claim may keep its earlier CPUs until another pod owns them.
        self._accepted = {
            uid: cpus
            for uid, cpus in owners.items()
            if (pod := node.pods.get(uid)) and _claims(pod, cpus)
        }

    def _check_owner(self, pod: Pod, cpus: CpuSet, groups: set[str]) -> None:
        for group in (*pod.running, pod.sandbox_group):
            if group in groups:
                self._tally.checked += 1
                effective = self._node.cgroups.effective(group)
                if group == pod.sandbox_group:
                    effective = self._sandbox_cpus(group, cpus)
                if effective != cpus:
                    self._tally.add("lost_pins", f"{group} has {effective}, not {cpus}")

    def _sandbox_cpus(self, group: str, cpus: CpuSet) -> CpuSet:
        """The CPUs of a pause container, after the agent has moved it. The agent moves it after the
        containers; after a kill of the agent, `cpus` is returned."""
        deadline = time.monotonic() + SANDBOX_SECONDS
        while True:
            alive = self._launcher.running
            effective = self._node.cgroups.effective(group)
            if effective == cpus or time.monotonic() > deadline:
                return effective
            if not alive:
                return cpus
            time.sleep(0.001)

    def _check_others(
        self, owner: Pod, cpus: CpuSet, uids: set[str] | frozenset[str], groups: set[str]
    ) -> None:
        for uid in uids:
            pod = self._node.pods[uid]
            if pod is owner or (pod.qos_class == "BE" and owner.qos_class != "LSE"):
                continue
            for group in pod.running:
                if group in groups and (effective := self._node.cgroups.effective(group)) & cpus:
                    self._tally.add("overlaps", f"{group} has {effective}, {owner.uid} owns {cpus}")

    def _restore(self) -> None:
        node, launcher = self._node, self._launcher
        for attempt in range(MAX_RESTORE_KILLS + 1):
            last = attempt == MAX_RESTORE_KILLS
            launcher.start(
                node.restore_words, node.cgroups, 0 if last else self._rng.randint(1, 60)
            )
            code = launcher.ended()
            if code != -signal.SIGKILL:
                break
            self._tally.restore_kills += 1
        if code:
            self._tally.add("not_restored", f"restore ended with {code}:\n{launcher.log()[-2000:]}")
        for group in node.cgroups.groups():
            own = node.cgroups.own(group)
            if own not in node.originals[group]:
                self._tally.add("not_restored", f"{group}: {own}, not of {node.originals[group]}")
        if left := Journal(node.state / "journal").originals:
            self._tally.add("not_restored", f"the journal still has {sorted(left)}")
        for line in launcher.log().splitlines():
            if "the pass failed" in line or "Traceback" in line:
                self._tally.add("crashes", line)


def _claims(pod: Pod, cpus: CpuSet) -> bool:
    try:
        return CpuSet.parse(pod.claim) == cpus
    except CpuSetError:
        return False


def kill(count: int, seed: int, *, real: bool = False) -> Tally:
    """Series of up to KILLS_PER_SERIES kills, on v1 and v2 in turn."""
    rng = random.Random(seed)
    tally = Tally()
    series = max(-(-count // KILLS_PER_SERIES), min(count, 1 if real else 2))
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    for number in range(series):
        kills = (count - tally.kills) // (series - number)
        folder = Path(tempfile.mkdtemp(prefix="topolet-kills-", dir=memory))
        try:
            with Launcher(folder) as launcher:
                name = f"topolet-kills-{os.getpid()}"
                node = this_machine(folder, name) if real else large_machine(folder, 1 + number % 2)
                try:
                    KillSeries(node, launcher, rng, tally).run(kills)
                finally:
                    try:
                        launcher.kill()
                    finally:
                        node.close()
        finally:
            shutil.rmtree(folder)
    return tally


def _end(number: int, frame: FrameType | None) -> None:
    """Ends the process; further signals do not interrupt the cleanup."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000, metavar="N", help="kills (1000)")
    parser.add_argument("--seed", type=int, help="seed of the random numbers (random)")
    parser.add_argument("--real", action="store_true", help="this machine's CPUs and cgroups")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    start = time.monotonic()
    tally = kill(options.count, seed, real=options.real)
    for each in tally.findings[:50]:
        print(each, file=sys.stderr)
    result = {
        "kills": tally.kills,
        **tally.violations,
        "checked": tally.checked,
        "restore_kills": tally.restore_kills,
        "seconds": round(time.monotonic() - start, 1),
        "seed": seed,
        "points": dict(tally.points.most_common()),
    }
    print(json.dumps(result))
    return 0 if tally.clean else 1


if __name__ == "__main__":
    sys.exit(main())
