"""The archive of `topolet doctor --bundle` has what a maintainer needs, and no secret."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli import bundle
from agent.model.audit import AuditEvent, Record
from agent.model.settings.agent import KubeletStateSettings
from agent.node.doctor import Examination
from agent.telemetry.audit import Trail
from tests.cli.conftest import Topolet
from tests.cli.secret_values import (
    ANSWER,
    ENVIRONMENT,
    SECRET,
    add_container,
    write_checkpoint,
)
from tests.faults.conftest import AgentHarness
from tests.faults.launcher import Launcher
from tests.faults.node import SimulatedNode, large_machine
from tests.waiting import eventually

LOG_NAME = "logs/topolet-system_topolet-agent-x_uid-agent-0.log"
NOTHING = Examination((), None, ())
LOG = f"""time=2026-01-01T00:00:00Z level=info msg="starts" token={SECRET}
time=2026-01-01T00:00:01Z level=info msg="Authorization: Bearer {SECRET}"
{{"password": "{SECRET}", "kept": "useful"}}
https://admin:{SECRET}@example.com/x eyJhbGciOi.{SECRET}.x
-----BEGIN PRIVATE KEY-----
{SECRET}
-----END PRIVATE KEY-----
level=info msg="the pass has ended"
"""


def unpacked(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {}
        for each in tar:
            content = tar.extractfile(each)
            assert content is not None
            found[each.name.removeprefix("topolet-doctor/")] = content.read().decode()
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SimulatedNode]:
    """A node on which every source of the archive has a secret."""
    node = large_machine(tmp_path, 1)
    node.runtime.environment = ENVIRONMENT
    add_container(node, "LSE", "1-2")
    write_checkpoint(tmp_path / "kubelet")
    (tmp_path / "kubelet" / "cpu_manager_state").write_text(
        json.dumps({"policyName": "none", "defaultCpuSet": "", "checksum": 1, "token": SECRET})
    )
    logs = tmp_path / "machine/var/log/pods/topolet-system_topolet-agent-x_uid/agent"
    logs.mkdir(parents=True)
    (logs / "0.log").write_text(LOG)
    yield node
    node.close()


def test_the_archive_has_what_a_maintainer_needs_and_no_secret(
    node: SimulatedNode, tmp_path: Path, topolet: Topolet
) -> None:
    with Launcher(tmp_path) as launcher:
        harness = AgentHarness(node, launcher)
        harness.start()
        eventually("a snapshot", lambda: bool((s := node.snapshot()) and s.owners))
        launcher.kill()
    Trail(str(node.state), "agent", 1 << 20).append([Record(event=AuditEvent.POD_DECIDED)])
    with (node.state / "journal").open("a") as journal:
        journal.write(json.dumps({"group": "/g", "file": "f", "value": f"token={SECRET}"}) + "\n")
        journal.write(f"{SECRET}\n")
    before = {each: each.read_bytes() for each in node.state.iterdir() if each.is_file()}
    path = tmp_path / "bundle.tar.gz"
    arguments = [*node.restore_words[1:], f"--kubelet-dir={tmp_path / 'kubelet'}"]
    printed = topolet("doctor", f"--bundle={path}", *arguments, code=1)
    assert "agent-absent: " in printed.out
    assert f"topolet: {path}: {path.stat().st_size} bytes" in printed.err
    found = unpacked(path.read_bytes())
    assert set(found) >= {
        "about.json",
        "audit.json",
        "config.json",
        "doctor.json",
        "doctor.txt",
        "journal.json",
        "kubelet-state.json",
        LOG_NAME,
        "snapshot.json",
        "topology.json",
    }
    assert [name for name, text in found.items() if SECRET in text or ANSWER in text] == []
    assert json.loads(found["doctor.json"])["schema_version"] == 1
    assert json.loads(found["snapshot.json"])["owners"][0]["cpuset"] == "1-2"
    assert any(each.get("group") for each in json.loads(found["journal.json"]))
    assert "PodDecided" in found["audit.json"]
    assert "example.com/card" in found["kubelet-state.json"]
    assert "the pass has ended" in found[LOG_NAME]
    assert "useful" in found[LOG_NAME]
    assert len(json.loads(found["topology.json"])["cpus"]) == 16
    # The command changes nothing, not even a journal that it can't read.
    assert before == {each: each.read_bytes() for each in before}


def test_an_existing_file_is_not_replaced(
    node: SimulatedNode, tmp_path: Path, topolet: Topolet
) -> None:
    path = tmp_path / "bundle.tar.gz"
    path.write_text("existing")
    printed = topolet("doctor", f"--bundle={path}", *node.restore_words[1:], code=2)
    assert f"topolet: {path}: File exists\n" in printed.err
    assert "standard output" not in printed.err
    assert path.read_text() == "existing"


def test_sources_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "snapshot.json").write_text(f'{{"generation": "{SECRET}"}}')
    config = tmp_path / "config.toml"
    config.write_text(f'token = "{SECRET}"\nhttp = "127.0.0.1:1"\n')
    settings = KubeletStateSettings(
        root=str(tmp_path), state_dir=str(tmp_path), kubelet_dir=str(tmp_path / "kubelet")
    )
    found = unpacked(bundle.archive_of(settings, NOTHING, "", str(config), "topolet-system"))
    unread = json.loads(found["unread.json"])
    assert {"snapshot.json", "journal.json", "audit.json", "topology.json"} <= set(unread)
    assert json.loads(found["config.json"]) == {"http": "127.0.0.1:1"}
    assert SECRET not in "".join(found.values())


def test_files_are_bounded(tmp_path: Path) -> None:
    archive = bundle.archive_of(
        KubeletStateSettings(root=str(tmp_path)),
        NOTHING,
        "x" * (3 * bundle.MAX_FILE_BYTES) + "end",
        "",
        "ns",
    )
    found = unpacked(archive)
    assert len(found["doctor.txt"]) == bundle.MAX_FILE_BYTES
    assert found["doctor.txt"].endswith("end")
    with_logs = unpacked(bundle.with_logs(archive, {"agent.log": f"token={SECRET}"}))
    assert with_logs == {**found, "logs/agent.log": "<left out>"}


def test_pods_of_other_namespaces_replace_no_log(tmp_path: Path) -> None:
    pods = tmp_path / "var/log/pods"
    for number in range(bundle.MAX_LOGS + 1):
        folder = pods / f"tenant_topolet-agent-{number}_u/agent"
        folder.mkdir(parents=True)
        (folder / "0.log").write_text("of a tenant")
    for name in ("a", "b"):
        folder = pods / f"topolet-system_topolet-agent-{name}_u/agent"
        folder.mkdir(parents=True)
        (folder / "0.log").write_text("x" * (2 * bundle.MAX_FILE_BYTES) + f"of {name}")
    settings = KubeletStateSettings(root=str(tmp_path), state_dir=str(tmp_path))
    found = unpacked(bundle.archive_of(settings, NOTHING, "", "", "topolet-system"))
    logs = {name: text[-4:] for name, text in found.items() if name.startswith("logs/")}
    assert logs == {
        f"logs/topolet-system_topolet-agent-{name}_u-agent-0.log": f"of {name}"
        for name in ("a", "b")
    }


def archived(*members: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for each in members:
            archive.addfile(each, io.BytesIO(bytes(each.size)))
    return packed.getvalue()


def member(name: str, size_bytes: int = 1, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size, found.type, found.linkname = size_bytes, kind, "/etc/passwd"
    return found


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([member("topolet-doctor/../../.bashrc")], r"unexpected member: '\.\./\.\./\.bashrc'"),
        ([member("/etc/passwd")], "unexpected member: '/etc/passwd'"),
        ([member("topolet-doctor/logs/a/b")], "unexpected member"),
        ([member("topolet-doctor/\x1b[31m")], r"unexpected member: '\\x1b\[31m'"),
        ([member("topolet-doctor/a", 0, tarfile.SYMTYPE)], "unexpected member: 'a'"),
        ([member("topolet-doctor/a", 0, tarfile.LNKTYPE)], "unexpected member: 'a'"),
        ([member("topolet-doctor/a", 0, tarfile.DIRTYPE)], "unexpected member: 'a'"),
        ([member(f"topolet-doctor/{each}") for each in range(65)], "unexpected member"),
        ([member("topolet-doctor/a", bundle.MAX_ARCHIVE_BYTES)], "has more than"),
    ],
)
def test_an_archive_of_a_hostile_node_is_refused(members: list[tarfile.TarInfo], why: str) -> None:
    with pytest.raises(tarfile.TarError, match=why):
        bundle.with_logs(archived(*members), {})


def test_a_damaged_archive_is_refused() -> None:
    with pytest.raises(tarfile.TarError, match="is damaged"):
        bundle.with_logs(archived(member("topolet-doctor/a", 9000))[:50], {})


def test_an_archive_with_invalid_numbers_is_refused() -> None:
    sparse = member("topolet-doctor/a")
    sparse.pax_headers = {"GNU.sparse.map": "0,x"}
    huge = member("topolet-doctor/a", 1 << 70, tarfile.GNUTYPE_LONGNAME)
    for archive in (archived(sparse), gzip.compress(huge.tobuf(tarfile.GNU_FORMAT))):
        with pytest.raises(tarfile.TarError, match="is damaged"):
            bundle.with_logs(archive, {})
