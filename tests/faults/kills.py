"""`python -m tests.faults.kills --count N`: the agent is killed N times while pods start and end.

It is the real command, on a simulated node: pods that start, end, have false annotations and change
their class, two sockets of 8 CPUs with their cgroups, v1 and v2, as files (`--real`: this machine's
CPUs and cgroups). Some kills are at any moment, most at a step: before a system call that changes
something, so between every two steps of each write. The state is checked after the kill, and again
after the first pass of the next agent. Each series of kills ends with `topolet restore`, which is
killed as well.

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
from tests.faults.node import PlayedNode, Pod, large_machine, this_machine

KILLS_PER_LIFE = 50
MAX_RESTORE_KILLS = 5
MOMENT_SECONDS = 0.03
SANDBOX_SECONDS = 30.0
WRONGS = ("lost_pins", "overlaps", "illegal", "unjournalled", "not_restored", "crashes")


class Tally:
    """`wrong` by kind; `checked`: how many groups of owners were compared with their CPUs."""

    def __init__(self) -> None:
        self.kills = self.restore_kills = self.checked = 0
        self.wrong = Counter(dict.fromkeys(WRONGS, 0))
        self.points: Counter[str] = Counter()
        self.findings: list[str] = []

    def add(self, kind: str, what: str) -> None:
        self.wrong[kind] += 1
        self.findings.append(f"kill {self.kills}: {kind}: {what}")

    @property
    def clean(self) -> bool:
        return not self.wrong.total()


class Life:
    """One node from its first agent to the restore."""

    def __init__(
        self, node: PlayedNode, launcher: Launcher, choice: random.Random, tally: Tally
    ) -> None:
        self._node = node
        self._launcher = launcher
        self._choice = choice
        self._tally = tally
        self._accepted: dict[str, CpuSet] = {}
        self._settled: set[str] = set()
        self._steps_to_look = 30
        self._steps_of_look = 10

    def live(self, kills: int) -> None:
        node, choice, launcher = self._node, self._choice, self._launcher
        for _ in range(kills):
            for _ in range(choice.randint(0, 3)):
                node.churn(choice)
            early = choice.random() < 0.4
            start = time.monotonic_ns()
            dies_at = choice.randint(1, self._steps_to_look + 1) if early else 0
            launcher.start(node.agent_words, node.cgroups, dies_at)
            if node.looked(start, lambda: launcher.running):
                self._steps_to_look = launcher.board.passed
                self._check_settled()
                self._provoke()
            self._die()
        self._restore()

    def _provoke(self) -> None:
        node, choice, board = self._node, self._choice, self._launcher.board
        if choice.random() < 0.3:
            end = time.monotonic() + choice.uniform(0, MOMENT_SECONDS)
            while time.monotonic() < end:
                node.churn(choice)
                node.notify(SnapshotRequest())
                time.sleep(choice.uniform(0, MOMENT_SECONDS / 10))
            return
        before = board.passed
        board.dies_at = before + choice.randint(1, self._steps_of_look + 1)
        for _ in range(choice.randint(1, 3)):
            node.churn(choice)
        notified = time.monotonic_ns()
        node.notify(SnapshotRequest())
        if node.looked(notified, lambda: self._launcher.running):
            self._steps_of_look = board.passed - before
            self._check_settled()

    def _die(self) -> None:
        launcher = self._launcher
        launcher.kill()
        code = launcher.ended()
        if code != -signal.SIGKILL:
            raise RuntimeError(f"the agent ended by itself ({code}):\n{launcher.log()[-4000:]}")
        self._tally.kills += 1
        self._tally.points[launcher.board.place or "any moment"] += 1
        self._check_death()

    def _check_death(self) -> None:
        """No owner lost a CPU, no other pod got one of them, every group is legal, and its first
        value is on disk."""
        node = self._node
        unchanged = node.pods.keys() - node.touched
        for uid, cpus in self._accepted.items():
            if uid in unchanged:
                self._check_owner(node.pods[uid], cpus, self._settled)
                self._check_others(node.pods[uid], cpus, unchanged, self._settled)
        for each in node.cgroups.illegal():
            self._tally.add("illegal", each)
        journal = Journal(node.state / "journal")
        for each in journal.problems:
            self._tally.add("unjournalled", each)
        for group in node.cgroups.groups():
            originals = node.originals[group]
            noted = journal.originals.get(group)
            if noted is not None and CpuSet.parse(noted.cpus) not in originals:
                self._tally.add("unjournalled", f"{group}: {noted.cpus!r} is not of {originals}")
            if noted is None and (own := node.cgroups.own(group)) not in originals:
                self._tally.add("unjournalled", f"{group} has {own}, not one of {originals}")
        if node.snapshot() is None and (node.state / "snapshot.json").exists():
            self._tally.add("illegal", "the snapshot is torn")
        self._accept_published()

    def _accept_published(self) -> None:
        """The owners of the killed agent with unchanged claims."""
        node = self._node
        snapshot = node.snapshot()
        for owner in snapshot.owners if snapshot else ():
            pod = node.pods.get(owner.uid)
            if pod and pod.qos_class == owner.qos and _claims(pod, owner.cpus):
                self._accepted[owner.uid] = owner.cpus
                node.touched.discard(owner.uid)

    def _check_settled(self) -> None:
        """After a pass without changes."""
        node = self._node
        snapshot = node.snapshot()
        assert snapshot is not None
        owners = {each.uid: each.cpus for each in snapshot.owners}
        for uid in self._accepted.keys() & node.pods.keys() - node.touched:
            if owners.get(uid) != self._accepted[uid]:
                self._tally.add("lost_pins", f"{uid} owns {owners.get(uid)} now")
        groups = set(node.cgroups.groups())
        for uid, cpus in owners.items():
            if pod := node.pods.get(uid):
                self._check_owner(pod, cpus, groups)
                self._check_others(pod, cpus, node.pods.keys(), groups)
        self._settled = groups
        node.touched.clear()
        # An owner whose current claim was refused may keep its earlier CPUs while no other pod owns
        # them.
        self._accepted = {
            uid: cpus
            for uid, cpus in owners.items()
            if (pod := node.pods.get(uid)) and _claims(pod, cpus)
        }

    def _check_owner(self, pod: Pod, cpus: CpuSet, groups: set[str]) -> None:
        for group in (*pod.running, pod.sandbox_group):
            if group in groups:
                self._tally.checked += 1
                held = self._node.cgroups.effective(group)
                if group == pod.sandbox_group:
                    held = self._followed(group, cpus)
                if held != cpus:
                    self._tally.add("lost_pins", f"{group} has {held}, not {cpus}")

    def _followed(self, group: str, cpus: CpuSet) -> CpuSet:
        """Changes do not wait for a pause container: it follows the published pools, unless the
        agent is killed before."""
        deadline = time.monotonic() + SANDBOX_SECONDS
        while True:
            alive = self._launcher.running
            held = self._node.cgroups.effective(group)
            if held == cpus or time.monotonic() > deadline:
                return held
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
                if group in groups and (held := self._node.cgroups.effective(group)) & cpus:
                    self._tally.add("overlaps", f"{group} has {held}, {owner.uid} owns {cpus}")

    def _restore(self) -> None:
        node, launcher = self._node, self._launcher
        for attempt in range(MAX_RESTORE_KILLS + 1):
            last = attempt == MAX_RESTORE_KILLS
            launcher.start(
                node.restore_words, node.cgroups, 0 if last else self._choice.randint(1, 60)
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
    """Series of up to KILLS_PER_LIFE kills, on v1 and v2 in turn."""
    choice = random.Random(seed)
    tally = Tally()
    lives = max(-(-count // KILLS_PER_LIFE), min(count, 1 if real else 2))
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    for number in range(lives):
        kills = (count - tally.kills) // (lives - number)
        folder = Path(tempfile.mkdtemp(prefix="topolet-kills-", dir=memory))
        try:
            with Launcher(folder) as launcher:
                name = f"topolet-kills-{os.getpid()}"
                node = this_machine(folder, name) if real else large_machine(folder, 1 + number % 2)
                try:
                    Life(node, launcher, choice, tally).live(kills)
                finally:
                    try:
                        launcher.kill()
                    finally:
                        node.close()
        finally:
            shutil.rmtree(folder)
    return tally


def _end(number: int, frame: FrameType | None) -> None:
    """Only once: a cleanup is not interrupted."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000, metavar="N", help="kills (1000)")
    parser.add_argument("--seed", type=int, help="of the choices; else another each time")
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
        **tally.wrong,
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
