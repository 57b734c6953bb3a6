"""Runs the conformance suite of the CRI (critest) against a socket; the result of each spec."""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tests.integration import registry
from tests.integration.harness import fresh_node, private_containerd

RUN_SECONDS = 300.0

# Specs that need images of a registry, a kernel with AppArmor, or pods with a network.
_SKIPPED = (
    "AppArmor|Image (Manager|Consistency|Identifier)|port mapping|portforward"
    "|should support network$"
)
_CODE = re.compile(r"rpc error: code = (\w+)")

Outcomes = Mapping[str, str]
"""By spec: `passed`, `skipped` or `failed CODE`, with the code of the first gRPC error."""


class Suite:
    """Runs critest on one runtime, directly or through the proxy."""

    def __init__(self, critest: pathlib.Path, image: str, socket: str) -> None:
        self._critest = critest
        self._image = image
        self._socket = socket

    def run(self, only: Iterable[str] = ()) -> Outcomes:
        """Runs all specs that can run here, or those with these names."""
        names = [re.escape(name) for name in only]
        with tempfile.TemporaryDirectory(prefix="topolet-") as folder:
            images = pathlib.Path(folder, "images.yaml")
            images.write_text(f"defaultTestContainerImage: {self._image}\n")
            report = pathlib.Path(folder, "report.json")
            command = [
                str(self._critest),
                "-config=/nonexistent",
                f"-runtime-endpoint=unix://{self._socket}",
                f"-image-endpoint=unix://{self._socket}",
                f"-test-images-file={images}",
                f"-registry-prefix={self._image.partition('/')[0]}",
                f"-ginkgo.skip={_SKIPPED}",
                f"-ginkgo.json-report={report}",
                "-ginkgo.seed=1",
                *([f"-ginkgo.focus=({'|'.join(names)})$"] if names else []),
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
            )
            assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
            return _outcomes(report.read_bytes())


@contextlib.contextmanager
def suite(
    critest: pathlib.Path, programs: pathlib.Path | None, proxied: bool
) -> Iterator[tuple[str, Suite]]:
    """The runtime's name and a suite for it: the one in `programs`, or this machine's."""
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(private_containerd(programs, pod_network=True))
        image = stack.enter_context(registry.running(runtime.folder)).push(
            runtime, "busybox:latest"
        )
        node = stack.enter_context(fresh_node(runtime))
        if proxied:
            node.start_agent()
            node.start_proxy()
        socket = node.cri_socket if proxied else runtime.socket
        yield node.direct.version(), Suite(critest, image, socket)


class _Failure(msgspec.Struct, frozen=True, rename="pascal"):
    message: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="pascal"):
    leaf_node_type: str
    leaf_node_text: str
    state: str
    container_hierarchy_texts: list[str] | None = None
    failure: _Failure = _Failure()

    def name(self) -> str:
        return " ".join([*(self.container_hierarchy_texts or []), self.leaf_node_text])

    def outcome(self) -> str:
        code = _CODE.search(self.failure.message)
        return f"{self.state} {code[1]}" if code else self.state


class _Report(msgspec.Struct, frozen=True, rename="pascal"):
    spec_reports: list[_Spec]


def _outcomes(text: bytes) -> Outcomes:
    (report,) = msgspec.json.decode(text, type=list[_Report])
    return {
        each.name(): each.outcome() for each in report.spec_reports if each.leaf_node_type == "It"
    }
