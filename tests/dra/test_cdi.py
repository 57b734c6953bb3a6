"""The files from which a container learns of its claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.dra.cdi import CdiFiles, cdi_name, container_path, variable
from agent.model.bounds import JsonError
from agent.model.cpu.cpuset import CpuSetError
from agent.model.dra.prepared_claim import PreparedClaim, PreparedGroup

CLAIM = PreparedClaim(
    "8ec6fd12-bb08",
    "ns",
    "generated-x7",
    (
        PreparedGroup("cpus/eight", "n1", "numa-node-0", "0-3"),
        PreparedGroup("cpus/eight", "n1", "numa-node-1", "8-11"),
        PreparedGroup("monitor", "n1", "numa-node-0"),
    ),
    "db",
)
ATTRIBUTES = {"numa-node-1": {"resource.kubernetes.io/numaNode": {"int": 1}}}


@pytest.fixture
def files(tmp_path: Path) -> CdiFiles:
    return CdiFiles(str(tmp_path / "cdi"), str(tmp_path / "plugin"))


def read(path: Path | str) -> Any:
    return json.loads(Path(path).read_text())


def test_a_device_of_each_request_has_its_cpus(files: CdiFiles, tmp_path: Path) -> None:
    files.write(CLAIM, ATTRIBUTES)
    (path,) = (tmp_path / "cdi").iterdir()
    spec = read(path)
    assert spec["kind"] == "cpu.topolet.io/claim"
    # A request with admin access has no CPUs.
    assert [each["name"] for each in spec["devices"]] == ["8ec6fd12-bb08_cpus"]
    assert cdi_name(CLAIM, "cpus") == "cpu.topolet.io/claim=8ec6fd12-bb08_cpus"
    edits = spec["devices"][0]["containerEdits"]
    assert edits["env"] == [f"{variable(CLAIM, 'cpus')}=0-3,8-11"]
    assert variable(CLAIM, "cpus") == "TOPOLET_CLAIM_8ec6fd12_bb08_cpus"
    (mount,) = edits["mounts"]
    assert mount["options"] == ["ro", "bind"]
    assert mount["containerPath"] == (
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/db/cpus/"
        "cpu.topolet.io-metadata.json"
    )
    metadata = read(mount["hostPath"])
    assert (metadata["apiVersion"], metadata["kind"], metadata["podClaimName"]) == (
        "metadata.resource.k8s.io/v1alpha1",
        "DeviceMetadata",
        "db",
    )
    (request,) = metadata["requests"]
    assert request["name"] == "cpus/eight"
    assert [each["attributes"] for each in request["devices"]] == [
        {"cpu.topolet.io/cpuset": {"string": "0-3"}},
        {
            "resource.kubernetes.io/numaNode": {"int": 1},
            "cpu.topolet.io/cpuset": {"string": "8-11"},
        },
    ]


def test_the_files_of_a_claim_say_which_cpus_it_has(files: CdiFiles, tmp_path: Path) -> None:
    files.write(CLAIM, ATTRIBUTES)
    (tmp_path / "plugin" / "metadata" / "half").mkdir()
    assert files.uids() == [CLAIM.uid]
    told = files.read(CLAIM.uid)
    assert told == PreparedClaim(CLAIM.uid, "ns", "generated-x7", CLAIM.groups[:2])
    (path,) = (tmp_path / "plugin" / "metadata" / CLAIM.uid).iterdir()
    text = path.read_text()
    for faulty, error in (
        (text.replace('"0-3"', '"3-0"'), CpuSetError),
        (text.replace('"requests"', '"others"'), JsonError),
        ("", JsonError),
    ):
        path.write_text(faulty)
        with pytest.raises(error):
            files.read(CLAIM.uid)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        files.read(CLAIM.uid)


def test_a_claim_that_only_looks_at_devices_has_no_files(files: CdiFiles, tmp_path: Path) -> None:
    """The runtime's log would name a file without devices at each creation of a container."""
    group = PreparedGroup("watch", "n1", "numa-node-1")
    files.write(PreparedClaim("u-9", "ns", "c", (group,)), {})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not files.has("u-9")


def test_a_claim_that_its_author_made_is_found_by_its_name() -> None:
    claim = PreparedClaim("u", "ns", "cpus")
    assert "/resourceclaims/cpus/a/" in container_path(claim, "a")


def test_files_of_claims_that_are_gone_are_removed(files: CdiFiles, tmp_path: Path) -> None:
    """Also what a killed agent has half written."""
    other = PreparedClaim("v", "ns", "b", CLAIM.groups)
    for claim in (CLAIM, other):
        files.write(claim, {})
    (tmp_path / "plugin" / "metadata" / "half").mkdir()
    foreign = tmp_path / "cdi" / "nvidia.json"
    foreign.write_text("{}")
    files.remove_others({other.uid})
    assert {path.name for path in (tmp_path / "cdi").iterdir()} == {
        "cpu.topolet.io-claim_v.json",
        "nvidia.json",
    }
    assert [path.name for path in (tmp_path / "plugin" / "metadata").iterdir()] == ["v"]
    files.remove(other.uid)
    files.remove(other.uid)
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == ["nvidia.json"]
