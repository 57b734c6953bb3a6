"""The image: what the manifests run, as they run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent.cli.main import COMMANDS
from tests.deploy.manifests import of_kind
from tests.integration import image
from tests.integration.image import Image

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with image.built(tmp_path_factory.mktemp("image")) as it:
        yield it


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_command_is_the_entrypoint(built: Image) -> None:
    assert built.configuration["Entrypoint"] == ["topolet"]
    for name in ("agent", "nri", "webhook"):
        assert good(built.run("topolet", name, "--help")).startswith(f"usage: topolet {name} ")
    told = good(built.run(*built.configuration["Entrypoint"], "--help"))
    assert all(f"  {name} " in told for name in COMMANDS)


def test_it_sees_the_machine_through_the_mounts(built: Image) -> None:
    words = ("topolet", "topology", "--output", "json")
    inside = json.loads(good(built.run(*words, "--root", "/host", host=True)))
    outside = subprocess.run(
        [sys.executable, "-m", "agent", *words[1:]], capture_output=True, check=True, text=True
    )
    assert inside == json.loads(outside.stdout)


def test_the_webhook_runs_as_nobody(built: Image) -> None:
    """As far as it can come without a cluster."""
    pod = of_kind("Deployment")["topolet-webhook"]["spec"]["template"]["spec"]
    done = built.run("topolet", "webhook", user=pod["securityContext"]["runAsUser"])
    assert done.returncode == 1
    assert "not in a cluster" in done.stderr.splitlines()[-1]


def test_what_the_modes_need_is_there(built: Image) -> None:
    good(built.run("/opt/topolet/bin/python3", "-c", "import cheroot, grpc"))
    done = built.run("/opt/topolet/bin/python3", "-c", "import pytest")
    assert "No module named 'pytest'" in done.stderr


def test_bytecode_is_there_and_nobody_asks_whether_it_is_old(built: Image) -> None:
    library = built.root / "opt" / "topolet" / "lib"
    sources = list(library.rglob("*.py"))
    assert len(sources) > 300
    for source in sources:
        (compiled,) = (source.parent / "__pycache__").glob(f"{source.stem}.cpython-*.pyc")
        assert compiled.read_bytes()[4:8] == b"\x01\0\0\0", f"{compiled}: not unchecked-hash"


@pytest.mark.parametrize(
    "words", [("--help",), ("agent", "--help"), ("topology", "--root", "/host")]
)
def test_a_start_compiles_nothing(built: Image, words: tuple[str, ...]) -> None:
    """The command's own file of five lines is no module, and has no bytecode."""
    done = built.run("topolet", *words, env={"PYTHONVERBOSE": "1"}, host=True)
    good(done)
    read = re.findall(r"# code object from '?([^'\n]+)", done.stderr)
    assert [each for each in read if each.endswith(".pyc")]
    assert [each for each in read if not each.endswith(".pyc")] == []
