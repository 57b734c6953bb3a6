"""Every call of the CRI has the same result through the proxy as directly."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from tests.fixtures import image
from tests.fixtures.containerd import Containerd
from tests.integration import registry
from tests.integration.fullcri import FullCri
from tests.integration.harness import built_or_skip, fresh_node
from tests.integration.matrix import STEPS, Calls, Route, Step

ONLINE = pathlib.Path("/sys/devices/system/cpu/online")


class Outcomes(msgspec.Struct, frozen=True):
    """The outcomes and status codes of all steps, by name, on a runtime of a major version."""

    runtime: str
    major: int
    direct: Mapping[str, object]
    direct_codes: Mapping[str, str]
    proxied: Mapping[str, object]
    proxied_codes: Mapping[str, str]


def descriptor() -> pathlib.Path:
    return built_or_skip("cri-tools") / "cri.descriptor"


def outcomes(
    socket: str, logs: pathlib.Path, known: Mapping[str, str]
) -> tuple[dict[str, object], dict[str, str]]:
    """Runs all steps in order; their outcomes and status codes."""
    logs.mkdir()
    with contextlib.closing(FullCri(descriptor(), socket)) as cri:
        route = Route(cri, logs, known)
        return {step.name: route.run(step) for step in STEPS}, route.codes


@pytest.fixture(scope="module", params=["containerd", "containerd2"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The outcomes of all steps, directly and through the proxy."""
    descriptor()
    folder = tmp_path_factory.mktemp("matrix")
    with registry.running(folder) as images:
        runtime: Containerd = request.getfixturevalue(request.param)
        with fresh_node(runtime) as node:
            known = {
                "image": image.NAME,
                "pulled": images.push(runtime, "pulled:1"),
                "registry": images.address,
                "cgroup": node.spec("matrix").cgroup_parent(),
                "cpus": ONLINE.read_text().strip(),
            }
            node.start_agent()
            node.start_proxy()
            direct = outcomes(runtime.socket, folder / "direct", known)
            proxied = outcomes(node.cri_socket, folder / "proxied", known)
            version = node.direct.version()
    major = re.search(r" v?(\d+)\.", version)
    assert major is not None
    return Outcomes(version, int(major[1]), *direct, *proxied)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name.replace(" ", "_"))
def test_call_has_the_same_result(both: Outcomes, step: Step | Calls) -> None:
    if (
        isinstance(step, Calls)
        or step.served is True
        or (step.served and both.major >= step.served)
    ):
        assert both.direct_codes[step.name] == "OK", both.direct[step.name]
    assert both.proxied[step.name] == both.direct[step.name]


def test_every_method_that_the_runtime_serves_is_implemented(
    both: Outcomes, record_property: Callable[[str, Any], None]
) -> None:
    counts = {
        way: sum(code != "UNIMPLEMENTED" for code in codes.values())
        for way, codes in (("direct", both.direct_codes), ("proxied", both.proxied_codes))
    }
    lines = [f"{both.runtime}: {len(STEPS)} CRI calls; served:"]
    record_property("summary", "\n".join([*lines, *(f"{n:6} {way}" for way, n in counts.items())]))
    assert counts["direct"] == counts["proxied"] > 50


def test_the_table_has_every_method_of_the_cri() -> None:
    named = {step.method for step in STEPS if isinstance(step, Step)}
    with contextlib.closing(FullCri(descriptor(), "/nowhere")) as cri:
        assert named | {"GetContainerEvents"} == set(cri.methods)
