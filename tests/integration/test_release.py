"""The release command, with the base of the tests instead of the pinned one, and the workflow that
publishes and signs what it has built."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deploy import release
from tests.integration import publishing
from tests.integration.image import building
from tests.integration.publishing import Publication, documented

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]
COSIGNS = ("cosign", "cosign-3")
"""Sets with cosign: the one that signs, and the next one, with which others may verify."""
DOCUMENTS = {"cyclonedx": "cdx", "openvex": "openvex"}
"""The attested documents: how the names of their files end, by their predicate types."""


class Built(NamedTuple):
    """The files of a release in a folder, and what the command printed."""

    folder: Path
    files: list[Path]
    printed: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder, printed = tmp_path_factory.mktemp("dist"), io.StringIO()
    with building() as (builder, options), contextlib.redirect_stdout(printed):
        files = release.release(
            folder,
            builder=release.Builder(builder.store, options),
            platforms=release.PLATFORMS,
            used_base=builder.make_bases(),
        )
        assert "topolet-release" not in builder.run("images", "--format={{.Name}}")
    return Built(folder, files, printed.getvalue())


@pytest.fixture(scope="module", params=["helm3", "helm"])
def publication(
    request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Publication]:
    folder = tmp_path_factory.mktemp("published")
    with publishing.published(folder, request.param, built.folder) as it:
        yield it


@pytest.fixture
def page(publication: Publication) -> Iterator[Path]:
    """The files of the release's page, which a test may change."""
    former = publication.page.with_name("former")
    shutil.copytree(publication.page, former)
    yield publication.page
    shutil.rmtree(publication.page)
    former.rename(publication.page)


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


def test_one_command_makes_all_parts_for_both_architectures(built: Built) -> None:
    folder = built.folder
    assert "topolet --help in" in built.printed
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(check, cwd=folder).returncode == 0
    archive = folder / f"topolet-{release.version()}-image.tar"
    assert archive in built.files
    by_machine = {each["platform"]["architecture"]: each["digest"] for each in index(archive)}
    assert machine_code(archive, by_machine["amd64"]) == {62}
    assert machine_code(archive, by_machine["arm64"]) == {183}
    bill = json.loads(next(folder.glob("*.cdx.json")).read_text())
    urls = {each["purl"].partition("@")[0] for each in bill["components"]}
    assert {"pkg:pypi/msgspec", "pkg:deb/debian/python3.11"} < urls
    statement = json.loads(next(folder.glob("*.provenance.json")).read_text())
    digests = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert digests[archive.name] == hashlib.sha256(archive.read_bytes()).hexdigest()


@pytest.mark.parametrize("cosign", COSIGNS)
def test_the_documented_commands_verify_what_the_workflow_publishes(
    publication: Publication, cosign: str
) -> None:
    commands = documented()
    assert {command.split()[1] for command in commands} == {
        *("verify", "verify-attestation", "verify-blob"),
        "--check",
    }
    for command in commands:
        publication.verify(command, cosign).check_returncode()


@pytest.mark.parametrize("cosign", COSIGNS)
def test_each_image_and_the_index_are_signed_and_no_other_image(
    publication: Publication, built: Built, cosign: str
) -> None:
    image, *_ = documented()
    archive = built.folder / f"topolet-{release.version()}-image.tar"
    for digest in (publication.outputs["image"], *(entry["digest"] for entry in index(archive))):
        by_digest = image.replace("topolet:0.1.0", f"topolet@{digest}")
        publication.verify(by_digest, cosign).check_returncode()
    publication.push_other("moved")
    for command in documented():
        if "OWNER/topolet:0.1.0" in command:
            done = publication.verify(command, cosign, tag="moved")
            assert done.returncode
            wanted = "attestations" if "verify-attestation" in command else "signatures"
            assert f"no matching {wanted}" in done.stderr or f"no {wanted} found" in done.stderr


@pytest.mark.parametrize("cosign", COSIGNS)
def test_the_attested_documents_are_those_of_the_release(
    publication: Publication, cosign: str
) -> None:
    (command,) = (line for line in documented() if "--type openvex " in line)
    for kind, ending in DOCUMENTS.items():
        done = publication.verify(command.replace("openvex", kind), cosign)
        done.check_returncode()
        statement = json.loads(base64.b64decode(json.loads(done.stdout)["payload"]))
        published = publication.page / f"topolet-{release.version()}.{ending}.json"
        assert statement["predicate"] == json.loads(published.read_text())
    done = publication.verify(command.replace("openvex", "spdx"), cosign)
    assert done.returncode
    assert "none of the attestations matched the predicate type" in done.stderr


@pytest.mark.parametrize("cosign", COSIGNS)
def test_changed_files_of_the_page_are_refused(
    publication: Publication, page: Path, cosign: str
) -> None:
    *_, blob, checksums = documented()
    chart = page / f"topolet-{release.version()}.tgz"
    flip(chart)
    done = publication.verify(checksums, cosign)
    assert done.returncode
    assert f"{chart.name}: FAILED" in done.stdout
    publication.verify(blob, cosign).check_returncode()
    flip(page / "SHA256SUMS")
    assert publication.verify(blob, cosign).returncode


@pytest.mark.parametrize("cosign", COSIGNS)
def test_signatures_of_others_are_refused(publication: Publication, cosign: str) -> None:
    other = f"other-than-{cosign}"
    publication.generate_key(other)
    for command in documented():
        if command.startswith("cosign "):
            assert publication.verify(command, cosign, key=other).returncode


def flip(file: Path) -> None:
    """Changes the last bit of a file's first byte."""
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
