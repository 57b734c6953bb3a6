"""The image, run with the options of the manifests."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from agent.cli.commands import COMMANDS
from tests.deploy.manifests import of_kind
from tests.fixtures.image import busybox
from tests.fixtures.ports import free_port
from tests.integration.apiserver.certificates import Authority
from tests.integration.image import MACHINE, Image, Mount
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(900)


def assert_succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_command_is_the_entrypoint(image: Image) -> None:
    assert image.configuration["Entrypoint"] == ["topolet"]
    for name in ("agent", "nri", "webhook"):
        assert assert_succeeded(image.run("topolet", name, "--help")).startswith(
            f"usage: topolet {name} "
        )
    output = assert_succeeded(image.run(*image.configuration["Entrypoint"], "--help"))
    assert all(f"  {name} " in output for name in COMMANDS)


def test_the_image_reads_the_machine_through_the_mounts(image: Image) -> None:
    words = ("topolet", "topology", "--output", "json")
    inside = json.loads(assert_succeeded(image.run(*words, "--root", "/host", mounts=MACHINE)))
    outside = subprocess.run(
        [sys.executable, "-m", "agent", *words[1:]], capture_output=True, check=True, text=True
    )
    assert inside == json.loads(outside.stdout)


def test_the_webhook_runs_as_nobody(image: Image, tmp_path: Path) -> None:
    """With the options of its Deployment and a mounted Secret, without an API server."""
    pod = of_kind("Deployment")["topolet-webhook"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    user, group = pod["securityContext"]["runAsUser"], pod["securityContext"]["fsGroup"]
    folders = {each["name"]: tmp_path / each["name"] for each in pod["volumes"]}
    for each in folders.values():
        each.mkdir()
    authority = Authority(tmp_path)
    authority.server("server")
    for ending in ("crt", "key"):
        file = folders["tls"] / f"tls.{ending}"
        file.write_bytes((tmp_path / f"server.{ending}").read_bytes())
        file.chmod(0o440)
        os.chown(file, 0, group)
    port = free_port()
    log = tmp_path / "webhook.log"
    args = [each.replace("$(HOST_IP)", "127.0.0.1") for each in container["args"]]
    with image.running(
        log,
        ["topolet", *args, f"--https=127.0.0.1:{port}"],
        user=user,
        env={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"},
        mounts=[
            Mount(each["mountPath"], str(folders[each["name"]]))
            for each in container["volumeMounts"]
        ],
        host_network=True,
    ):
        eventually("the webhook listens", lambda: "webhook listens" in log.read_text())
        trust = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        page = container["livenessProbe"]["httpGet"]["path"]
        url = f"https://127.0.0.1:{port}{page}"
        with urllib.request.urlopen(url, context=trust, timeout=10) as reply:
            assert reply.status == 200


def test_the_image_has_the_modules_of_all_modes(image: Image) -> None:
    assert_succeeded(image.run("/opt/topolet/bin/python3", "-c", "import grpc"))
    done = image.run("/opt/topolet/bin/python3", "-c", "import pytest")
    assert "No module named 'pytest'" in done.stderr


def test_its_interpreter_runs_on_a_host_without_python(image: Image, tmp_path: Path) -> None:
    """`topolet install-proxy` copies the interpreter to the host."""
    host = Mount("/host", str(tmp_path), read_only=False)
    code = "from agent.install import folder; folder.stage('/host/opt/topolet')"
    assert_succeeded(image.run("/opt/topolet/bin/python3", "-c", code, mounts=[host]))
    (tmp_path / "bin").mkdir()
    binary = busybox()
    assert binary is not None
    shutil.copy(binary, tmp_path / "bin/sh")
    for each in ("dirname", "readlink"):
        (tmp_path / "bin" / each).symlink_to("sh")
    for words in (("proxy", "--help"), ("install-proxy", "--help"), ("uninstall-node", "--help")):
        command = ["chroot", str(tmp_path), "/opt/topolet/bin/topolet", *words]
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        assert assert_succeeded(done).startswith(f"usage: topolet {words[0]} ")
    sources = [each for each in (tmp_path / "opt").rglob("*.py") if "bin" not in each.parts]
    assert len(sources) > 300
    assert all(list((each.parent / "__pycache__").glob(f"{each.stem}.*")) for each in sources)


@pytest.mark.parametrize(
    "words", [("--help",), ("agent", "--help"), ("topology", "--root", "/host")]
)
def test_a_start_compiles_nothing(image: Image, words: tuple[str, ...]) -> None:
    """Every module is read from its bytecode, all but the script of the command itself."""
    done = image.run("topolet", *words, env={"PYTHONVERBOSE": "1"}, mounts=MACHINE)
    assert_succeeded(done)
    read = re.findall(r"# code object from '?([^'\n]+)", done.stderr)
    assert [each for each in read if each.endswith(".pyc")]
    assert [each for each in read if not each.endswith(".pyc")] == []
