"""Compares the model of the cpuset rules with this machine's kernel: the same operations on both.

Only groups of the test are used, so the model's root is their top. Runs on v1 or v2, whichever the
machine has; tests/vm runs it on v2.
"""

import errno
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.cpu.cpuset import CpuSet
from tests.cgroup.kernel import Kernel
from tests.cgroup.machine import ALL, REAL

PATHS = ("/a", "/b", "/a/x", "/a/y", "/a/x/i")
SLEEPERS = 2
MISSING_CPU = 8_000
"""No machine has this CPU."""
EXAMPLES = 30 if os.environ.get("TOPOLET_GUEST") else 400


class Cgroups:
    """Groups of the test in the real kernel, below `top`, and a few processes for them."""

    def __init__(self) -> None:
        self.top = Path(f"{REAL.path}/topolet-model-{uuid.uuid4().hex[:8]}")
        self.top.mkdir()
        self.sleepers = [subprocess.Popen(["sleep", "1000"]) for _ in range(SLEEPERS)]
        if REAL.version == 1:
            for name in ("cpuset.mems", "cpuset.cpus"):
                (self.top / name).write_text((self.top.parent / name).read_text())
        else:
            (self.top / "cpuset.cpus").write_text(str(ALL))

    def path(self, group: str) -> Path:
        return self.top / group.lstrip("/")

    def groups(self) -> list[str]:
        return [f"/{path.relative_to(self.top)}" for path in self.top.rglob("*") if path.is_dir()]

    def make(self, group: str) -> None:
        path = self.path(group)
        if REAL.version == 2:
            (path.parent / "cgroup.subtree_control").write_text("+cpuset +memory")
        path.mkdir()
        if REAL.version == 1:
            (path / "cpuset.mems").write_text((self.top / "cpuset.mems").read_text())

    def remove(self, group: str) -> None:
        path = self.path(group)
        path.rmdir()
        if REAL.version == 2 and not any(each.is_dir() for each in path.parent.iterdir()):
            (path.parent / "cgroup.subtree_control").write_text("-cpuset -memory")

    def write(self, group: str, text: str) -> None:
        handle = os.open(self.path(group) / "cpuset.cpus", os.O_WRONLY)
        try:
            os.write(handle, f"{text}\n".encode())
        finally:
            os.close(handle)

    def attach(self, which: int, folder: Path) -> None:
        (folder / "cgroup.procs").write_text(str(self.sleepers[which].pid))

    def clear(self) -> None:
        for which in range(SLEEPERS):
            self.attach(which, Path(REAL.path))
        for group in sorted(self.groups(), key=lambda each: -each.count("/")):
            self.remove(group)

    def close(self) -> None:
        self.clear()
        for each in self.sleepers:
            each.kill()
            each.wait()
        self.top.rmdir()


@pytest.fixture(scope="module")
def cgroups() -> Iterator[Cgroups]:
    cgroups = Cgroups()
    try:
        yield cgroups
    finally:
        cgroups.close()


def answer(call: Callable[..., object], *arguments: object) -> str:
    """The name of the error, or "done"."""
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def clears_used(cgroups: Cgroups) -> bool:
    """Depends on the version of the kernel."""
    if REAL.version == 1:
        return False
    cgroups.make("/a")
    cgroups.write("/a", str(ALL))
    cgroups.attach(0, cgroups.path("/a"))
    result = answer(cgroups.write, "/a", "")
    cgroups.clear()
    return result == "done"


groups = st.sampled_from(PATHS)
texts = st.one_of(
    st.sets(st.sampled_from(list(ALL)[:4]), min_size=1).map(lambda cpus: str(CpuSet(cpus))),
    st.just(str(ALL)),
    st.sampled_from(["", str(MISSING_CPU), f"0,{MISSING_CPU}", "x", "1-0"]),
)
operations = st.one_of(
    st.tuples(st.just("make"), groups),
    st.tuples(st.just("remove"), groups),
    st.tuples(st.just("write"), groups, texts),
    st.tuples(st.just("write"), groups, texts),
    st.tuples(st.just("attach"), groups, st.integers(0, SLEEPERS - 1)),
    st.tuples(st.just("detach"), groups, st.integers(0, SLEEPERS - 1)),
)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(
    made=st.sets(groups).map(lambda some: [each for each in PATHS if each in some]),
    after=st.lists(operations, max_size=30),
)
def test_the_model_behaves_like_the_kernel(
    cgroups: Cgroups, made: list[str], after: list[tuple[str, ...]]
) -> None:
    model = Kernel(REAL.version, {"/": ALL}, clears_used=clears_used(cgroups))
    group_of: dict[int, str] = {}

    def attach(which: int, group: str | None) -> None:
        if group is not None:
            model.attach(group)
        if which in group_of:
            model.detach(group_of.pop(which))
        if group is not None:
            group_of[which] = group

    try:
        for kind, group, *more in [("make", each) for each in made] + after:
            before = (kind, group, *more, dict(model.cpus), dict(group_of))
            if kind == "make":
                real = answer(cgroups.make, group)
                result = answer(model.make, group)
            elif kind == "remove":
                real = answer(cgroups.remove, group)
                result = answer(model.remove, group)
            elif kind == "write":
                real = answer(cgroups.write, group, *more)
                result = answer(model.write, group, *more)
            else:
                target = group if kind == "attach" else None
                which = int(*more)
                folder = cgroups.path(group) if target else Path(REAL.path)
                real = answer(cgroups.attach, which, folder)
                result = answer(attach, which, target)
            assert result == real, before
            assert sorted(cgroups.groups()) == sorted(set(model.cpus) - {"/"}), before
            for each in set(model.cpus) - {"/"}:
                full = f"/{cgroups.top.name}{each}"
                assert REAL.own_cpus(full) == model.cpus[each], (each, before)
                assert REAL.effective_cpus(full) == model.effective(each), (each, before)
    finally:
        cgroups.clear()
