"""The release command, with the base of the tests instead of the pinned one."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from deploy import release
from tests.integration.image import building

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


def blob(archive: Path, digest: str) -> bytes:
    with tarfile.open(archive) as opened:
        found = opened.extractfile(f"blobs/{digest.replace(':', '/')}")
        assert found is not None
        return found.read()


def index(archive: Path) -> list[dict[str, Any]]:
    """The images of an OCI archive."""
    with tarfile.open(archive) as opened:
        found = opened.extractfile("index.json")
        assert found is not None
        (top,) = json.load(found)["manifests"]
    listed: list[dict[str, Any]] = json.loads(blob(archive, top["digest"]))["manifests"]
    return listed


def machine_code(archive: Path, digest: str) -> set[int]:
    """The ELF machine numbers of the libraries below /opt/topolet."""
    found = set()
    layers = json.loads(blob(archive, digest))["layers"]
    folder = archive.parent / "layer"
    for each in layers:
        folder.write_bytes(blob(archive, each["digest"]))
        with tarfile.open(folder) as opened:
            for file in opened:
                if file.name.startswith("opt/topolet/") and file.name.endswith(".so"):
                    read = opened.extractfile(file)
                    assert read is not None
                    found.add(int.from_bytes(read.read(20)[18:20], "little"))
    return found


def test_one_command_makes_all_parts_for_both_architectures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with building() as (tools, options):
        made = release.release(
            tmp_path,
            builder=release.Builder(tools.store, options),
            platforms=release.PLATFORMS,
            used_base=tools.make_bases(),
        )
        assert "topolet-release" not in tools.run("images", "--format={{.Name}}")
    assert "topolet --help in" in capsys.readouterr().out
    assert (
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path).returncode
        == 0
    )
    archive = tmp_path / f"topolet-{release.version()}-image.tar"
    assert archive in made
    by_machine = {each["platform"]["architecture"]: each["digest"] for each in index(archive)}
    assert machine_code(archive, by_machine["amd64"]) == {62}
    assert machine_code(archive, by_machine["arm64"]) == {183}
    bill = json.loads(next(tmp_path.glob("*.cdx.json")).read_text())
    urls = {each["purl"].partition("@")[0] for each in bill["components"]}
    assert {"pkg:pypi/msgspec", "pkg:deb/debian/python3.11"} < urls
    statement = json.loads(next(tmp_path.glob("*.provenance.json")).read_text())
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert digests[archive.name] == hashlib.sha256(archive.read_bytes()).hexdigest()
