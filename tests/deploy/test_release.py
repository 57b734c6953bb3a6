"""Parts of a release; the image is built in tests/integration/test_release.py."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from deploy import release
from deploy.release import IMAGE, ROOT, Package, ReleaseError
from tests import tools

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {
    "image/requirements.txt": [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["hookserver"],
    ],
    "image/build-requirements.txt": PROJECT["build-system"]["requires"],
    "plugin/requirements.txt": [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["kubeconfig"],
    ],
}


JUSTIFICATIONS = {
    "component_not_present",
    "vulnerable_code_not_present",
    "vulnerable_code_not_in_execute_path",
    "vulnerable_code_cannot_be_controlled_by_adversary",
    "inline_mitigations_already_exist",
}
"""Those of OpenVEX 0.2.0."""


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_has_each_dependency_within_its_range_and_with_hashes(name: str) -> None:
    """After a change of pyproject.toml, run `make lock`."""
    locked = {each.name: each for each in release.locked((ROOT / "deploy" / name).read_text())}
    assert all(each.sha256 for each in locked.values())
    for wanted in LOCKS[name]:
        package, _, bounds = wanted.partition(">=")
        least, _, beyond = bounds.partition(",<")
        found = number(locked[package.lower()].version)
        assert number(least) <= found < number(beyond), f"{wanted}: {locked[package.lower()]}"


def test_base_is_pinned_by_digest() -> None:
    name, _, digest = release.base().partition("@sha256:")
    assert name.startswith("python:3.")
    assert len(bytes.fromhex(digest)) == 32


def test_every_install_in_the_image_is_of_hashes_or_of_the_built_wheel() -> None:
    text = (IMAGE / "Dockerfile").read_text().replace("\\\n", " ")
    installs = [each for each in text.split("&&") if " install " in each]
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-index --no-deps" in each for each in installs)


def chart(folder: Path) -> Path:
    made = folder / "chart"
    (made / "templates").mkdir(parents=True)
    (made / "Chart.yaml").write_text('apiVersion: v2\nname: topolet\nversion: "0.1.0" # x\n')
    (made / "templates" / "a.yaml").write_text("a: 1\n")
    (made / ".helmignore").write_text("x\n")
    return made


def test_a_chart_is_packed_to_the_same_bytes_each_time(tmp_path: Path) -> None:
    packed = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made = release.pack_chart(chart(tmp_path / name), tmp_path / name)
        assert made.name == "topolet-0.1.0.tgz"
        packed.append(made)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    with tarfile.open(packed[0]) as archive:
        assert archive.getnames() == ["topolet/Chart.yaml", "topolet/templates/a.yaml"]
        (tmp_path / "one" / "chart" / "Chart.yaml").write_text("name: topolet\n")
    with pytest.raises(ReleaseError, match="version is missing"):
        release.pack_chart(tmp_path / "one" / "chart", tmp_path)


def test_the_manifest_for_krew_names_an_archive_of_each_platform_by_its_hash(
    tmp_path: Path,
) -> None:
    """By krew's validate.go and types.go, which know no other fields."""
    archives = {}
    for platform in release.PLATFORMS:
        archives[platform] = tmp_path / f"{platform.rpartition('/')[2]}.tar.gz"
        archives[platform].write_text(platform)
    manifest = release.krew_manifest("1.2.3", "owner/name", archives)
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert (manifest["kind"], manifest["metadata"]) == ("Plugin", {"name": "topolet"})
    spec = manifest["spec"]
    texts = {"version", "homepage", "shortDescription", "description", "caveats"}
    assert spec.keys() == texts | {"platforms"}
    assert spec["version"] == "v1.2.3"
    assert len(spec["shortDescription"]) <= 70
    for text in (spec["description"], spec["caveats"]):
        assert all(len(line) <= 80 for line in text.splitlines())
    selected = [platform["selector"]["matchLabels"] for platform in spec["platforms"]]
    assert selected == [{"os": "linux", "arch": arch} for arch in ("amd64", "arm64")]
    for platform, (name, archive) in zip(spec["platforms"], sorted(archives.items()), strict=True):
        assert platform.keys() == {"selector", "uri", "sha256", "files", "bin"}
        assert platform["sha256"] == hashlib.sha256(name.encode()).hexdigest()
        uri = f"https://github.com/owner/name/releases/download/v1.2.3/{archive.name}"
        assert platform["uri"] == uri


@pytest.fixture(scope="module")
def krew() -> Path:
    """The folder with krew and its validator."""
    where = tools.built("krew")
    if isinstance(where, str):
        pytest.skip(where)
    return where


@pytest.mark.long
def test_krew_accepts_the_manifest_and_refuses_one_without_a_program(
    krew: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive.tar.gz"
    archive.write_text("any")
    manifest = release.krew_manifest(
        "1.2.3", "owner/name", dict.fromkeys(release.PLATFORMS, archive)
    )
    path = tmp_path / "topolet.yaml"

    def validated() -> int:
        path.write_text(json.dumps(manifest))
        words = [krew / "validate-krew-manifest", "-manifest", path, "-skip-install"]
        return subprocess.run(words, capture_output=True, check=False).returncode

    assert validated() == 0
    del manifest["spec"]["platforms"][0]["bin"]
    assert validated() != 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_krew_installs_the_plugin_which_runs_with_its_own_packages(
    krew: Path, tmp_path: Path
) -> None:
    wheel, platform = release.wheel(tmp_path), release.own_platform()
    archive = release.pack_plugin(wheel, platform, tmp_path)
    manifest = tmp_path / "topolet.yaml"
    manifest.write_text(json.dumps(release.krew_manifest("1.2.3", "a/b", {platform: archive})))
    subprocess.run(
        [krew / "krew", "install", f"--manifest={manifest}", f"--archive={archive}"],
        env={**os.environ, "KREW_ROOT": str(tmp_path / "krew")},
        check=True,
    )
    link = tmp_path / "krew" / "bin" / "kubectl-topolet"
    installed = link.resolve().parent
    interpreter = tmp_path / "bin" / "python3"
    interpreter.parent.mkdir()
    # The virtual environment of the tests has the same packages; -S hides them.
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    interpreter.chmod(0o755)
    path = f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [link, "--version"], env={"PATH": path}, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert release.version() in done.stdout
    words = [interpreter, "-c", "import kubernetes, msgspec, xxhash, yaml; print(msgspec.__file__)"]
    environment = {"PYTHONPATH": str(installed / "site")}
    module = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert module.stdout.startswith(str(installed))
    for python in release.PYTHONS:
        tag = python.replace(".", "")
        assert list((installed / "site/msgspec").glob(f"_core.cpython-{tag}-*.so"))


STATUS = """Package: libc6
Status: install ok installed
Version: 2.36-9+deb12u10
Description: x
 Version: of another line

Package: gone
Status: deinstall ok config-files
Version: 1
"""


def test_the_bill_of_materials_has_the_packages_of_python_and_debian() -> None:
    packages = [*release.debian_packages(STATUS), Package("pypi", "msgspec", "0.22.0", ("ab",))]
    bill = release.sbom("1.2.3", packages)
    urls = [each["purl"] for each in bill["components"]]
    assert urls == ["pkg:deb/debian/libc6@2.36-9+deb12u10", "pkg:pypi/msgspec@0.22.0"]
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/topolet@1.2.3"
    assert bill == release.sbom("1.2.3", reversed(packages))
    other = release.sbom("1.2.3", packages[:1])
    assert other["serialNumber"] != bill["serialNumber"]


def test_a_vulnerability_without_effect_is_of_a_program_that_nothing_executes() -> None:
    """What deploy/image/vex.json says of a Debian package is that no program of it is executed."""
    locked = {each.name for each in release.locked((IMAGE / "requirements.txt").read_text())}
    texts = {
        node.value
        for file in (ROOT / "agent").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    statements = release.exploitability()
    assert statements
    for statement in statements:
        assert re.fullmatch(r"CVE-\d{4}-\d{4,}", statement["vulnerability"])
        assert statement["reason"].endswith(".")
        for package in statement["packages"]:
            kind, _, name = package.removeprefix("pkg:").rpartition("/")
            if kind == "pypi":
                assert name in locked
            else:
                assert kind == "deb/debian"
                programs = {name, f"{name}-get", f"{name}-key"}
                assert not {Path(text).name for text in texts} & programs


def test_the_openvex_document_has_a_justification_for_each_vulnerability() -> None:
    statement = {
        "vulnerability": "CVE-2000-0001",
        "packages": ["pkg:deb/debian/a"],
        "justification": "component_not_present",
        "reason": "There is no a.",
    }
    document = release.vex([statement], "2026-01-02T03:04:05Z")
    assert document["@context"] == "https://openvex.dev/ns/v0.2.0"
    (written,) = document["statements"]
    assert written["vulnerability"] == {"name": "CVE-2000-0001"}
    (product,) = written["products"]
    assert product == {"@id": "pkg:oci/topolet", "subcomponents": [{"@id": "pkg:deb/debian/a"}]}
    assert written["justification"] == "component_not_present"
    assert document["@id"] != release.vex([], "2026-01-02T03:04:05Z")["@id"]
    for written in release.vex(release.exploitability(), "")["statements"]:
        assert written["justification"] in JUSTIFICATIONS


def test_a_tag_of_another_version_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release.check_tag(f"v{release.version()}")
    output = tmp_path / "dist"
    monkeypatch.setattr("sys.argv", ["release", "--no-image", "--tag=v9.9.9", f"--output={output}"])
    assert release.main() == 1
    assert "v9.9.9" in capsys.readouterr().err
    assert not output.exists()


def test_a_tag_is_refused_if_the_chart_has_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "CHART", tmp_path)
    text = (ROOT / "deploy/chart/Chart.yaml").read_text()
    (tmp_path / "Chart.yaml").write_text(text.replace("appVersion: ", "appVersion: 9"))
    with pytest.raises(ReleaseError, match="appVersion is 9"):
        release.check_tag(f"v{release.version()}")


@pytest.mark.parametrize("dirty", [False, True])
def test_the_provenance_lists_each_file_and_its_materials(tmp_path: Path, dirty: bool) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    found = release.provenance([file], "c" * 40, f"python:3@sha256:{'d' * 64}", dirty=dirty)
    assert found["subject"] == [{"name": "a", "digest": {"sha256": digest}}]
    definition = found["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["uncommittedChanges"] is dirty
    digests = [each["digest"] for each in definition["resolvedDependencies"]]
    assert {"gitCommit": "c" * 40} in digests
    assert {"sha256": "d" * 64} in digests
    assert {"sha256": release.sha256(IMAGE / "requirements.txt")} in digests


def test_a_release_without_an_image_has_the_other_parts(tmp_path: Path) -> None:
    files = release.release(tmp_path, builder=None, platforms=(), used_base=release.base())
    words = ["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"]
    subprocess.run(words, cwd=tmp_path, check=True)
    assert {each.name for each in files} == {each.name for each in tmp_path.iterdir()}
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        pages = (each.relative_to(ROOT) for each in (ROOT / "agent/http/pages").iterdir())
        assert {"agent/py.typed", *map(str, pages)} <= set(opened.namelist())
    workflow = (ROOT / ".github/workflows/release.yaml").read_text()
    used = set(re.findall(r"\bdist/([\w.$-]+\w)", workflow.replace("$VERSION", release.version())))
    image = f"topolet-{release.version()}-image.tar"
    assert image in used
    assert used <= {each.name for each in files} | {image}
    bill = json.loads((tmp_path / f"topolet-{release.version()}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"


def test_a_base_that_cannot_be_pulled_names_the_option_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buildah = tmp_path / "buildah"
    buildah.write_text('#!/bin/sh\n[ "$1" != bud ] || { echo "no such image" >&2; exit 1; }\n')
    buildah.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(release.ReleaseError, match=r'base debian:x can.* RELEASE="--base IMAGE"'):
        release.Builder().build("name", ["linux/amd64"], "debian:x", tmp_path / "archive")
