"""The places of tests: the tests of agent/a/b.py are in tests/a/test_b.py or in
tests/a/test_b_ASPECT.py. COVERED lists the test files that cover other modules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

TESTS = Path(__file__).resolve().parent
AGENT = TESTS.parent / "agent"
GENERATED = "proto"
NAMED = re.compile(r"^\s*(?:from|import) tests\b.*\btest_", re.MULTILINE)

COVERED: Final[dict[str, tuple[str, ...]]] = {
    "allocate/node_local/test_policy_rules.py": ("allocate.node_local.claim",),
    "allocate/node_allocator/test_allocator.py": (
        "allocate.node_allocator.devices",
        "allocate.node_allocator.part",
    ),
    "allocate/rebind/test_planner.py": (
        "allocate.rebind.arrangement",
        "allocate.rebind.local_search",
    ),
    "cli/test_audit_commands.py": ("cli.history",),
    "cli/test_explain.py": ("scheduler.explain.saved",),
    "cli/test_main.py": ("__main__",),
    "cli/test_secrets.py": ("cli.topology",),
    "cli/test_top.py": ("cli.screen",),
    "cri/test_hostile_runtime.py": ("cri.client", "cri.events"),
    "cluster/test_release.py": ("cli.check_release",),
    "deploy/test_chart.py": ("cli.config",),
    "discover/test_cpus.py": ("model.cpu.topology",),
    "discover/test_device_objects.py": ("discover.sysfs_devices", "discover.pci"),
    "discover/test_hardware.py": ("model.cpu.topology",),
    "discover/test_hostile_devices.py": ("discover.sysfs_devices", "discover.pci"),
    "hooks/test_cpuset.py": ("model.verdict",),
    "proxy/test_gate_cri.py": ("hooks.requests", "model.wire"),
    "hooks/test_visibility_gpu_names.py": ("hooks.carriers",),
    "http/test_attacks.py": ("http.connection", "http.server"),
    "http/test_descriptors.py": ("http.listener", "http.server"),
    "http/test_page_listener.py": ("http.connection", "http.listener"),
    "http/test_server.py": ("http.certificates",),
    "install/test_installer.py": ("install.plan",),
    "install/test_uninstall.py": ("install.proxy",),
    "integration/extender/test_evictor.py": ("scheduler.preemption.evictor",),
    "integration/extender/test_retry.py": ("scheduler.unschedulable.retry",),
    "integration/test_doctor.py": ("cli.doctor", "node.doctor"),
    "integration/test_helm_removal.py": ("cli.uninstall_nodes",),
    "integration/test_install_proxy.py": ("install.folder", "install.observe", "install.proxy"),
    "integration/test_reconciler.py": ("node.daemon",),
    "integration/test_webhook.py": ("cli.processes",),
    "kube/test_cluster.py": ("kube.objects",),
    "kube/test_listwatch.py": ("kube.objects",),
    "kube/test_store.py": ("kube.documents",),
    "kubelet/test_podresources.py": ("model.pod.pod_resources",),
    "node/test_gpus_gpu_devices.py": ("model.devices.gpus",),
    "model/pod/test_qos.py": ("model.pod.pods",),
    "model/settings/test_options.py": ("model.settings.agent", "model.settings.scheduler"),
    "node/test_kubelet_process.py": ("host.processes",),
    "node/test_modes.py": ("host.files", "host.listener", "host.locks"),
    "node/test_node_local.py": ("model.notice",),
    "node/test_reconcile_claims.py": ("allocate.cpu_claims",),
    "nri/test_frontends.py": ("proxy.gate", "nri.messages"),
    "nri/test_hooks.py": ("nri.containers",),
    "nri/test_link.py": ("nri.service",),
    "relay/test_grpc_go.py": ("relay.server",),
    "relay/test_hostile.py": ("relay.relay", "relay.server"),
    "relay/test_large_requests.py": ("relay.streams",),
    "relay/test_relay.py": ("relay.calls", "relay.flow_control", "relay.gate", "relay.streams"),
    "relay/test_transparency.py": ("relay.relay", "relay.server"),
    "rpc/test_unary.py": ("rpc.frames",),
    "scheduler/explain/test_explainer.py": ("model.explanation", "scheduler.explain.causes"),
    "scheduler/test_fragmentation.py": ("view.fragmentation",),
    "scheduler/test_histories.py": ("scheduler.state.cluster",),
    "scheduler/test_plain_pods.py": ("scheduler.extender.handlers",),
    "scheduler/test_process.py": ("scheduler.rules",),
    "view/test_machine.py": ("view.nesting",),
    "view/top/test_frame.py": ("view.top.cells", "view.top.lists"),
}


def named_for(test: PurePosixPath, folder: Path) -> set[str]:
    """The modules of a folder whose tests are in this file, by its name."""
    name = test.stem.removeprefix("test_")
    modules = {each.stem for each in folder.glob("*.py") if each.stem != "__init__"}
    return {each for each in modules if name == each or name.startswith(f"{each}_")}


def files_of_tests() -> Iterator[PurePosixPath]:
    """Relative to tests/."""
    for file in sorted(TESTS.rglob("test_*.py")):
        yield PurePosixPath(file.relative_to(TESTS).as_posix())


def dotted(module: Path) -> str:
    return ".".join(module.relative_to(AGENT).with_suffix("").parts)


def modules_with_tests_of_their_name() -> set[str]:
    return {
        dotted(AGENT / test.parent / max(names, key=len))
        for test in files_of_tests()
        if (names := named_for(test, AGENT / test.parent))
    }


def modules() -> set[str]:
    return {
        dotted(file)
        for file in AGENT.rglob("*.py")
        if file.stem != "__init__" and GENERATED not in file.parts
    }


def test_every_module_has_tests() -> None:
    covered = {each for modules in COVERED.values() for each in modules}
    assert modules() - modules_with_tests_of_their_name() - covered == set()


def test_only_existing_files_and_modules_are_listed() -> None:
    covered = {each for modules in COVERED.values() for each in modules}
    assert covered - modules() == set()
    assert set(COVERED) - {str(each) for each in files_of_tests()} == set()


def test_no_file_is_listed_for_the_module_of_its_name() -> None:
    """A file with the name of a module is listed only for modules without their own file."""
    own = modules_with_tests_of_their_name()
    assert {
        name: modules
        for name, modules in COVERED.items()
        if named_for(PurePosixPath(name), AGENT / PurePosixPath(name).parent)
        and not own.isdisjoint(modules)
    } == {}


def test_every_test_file_of_a_package_belongs_to_modules() -> None:
    """Of agent, or of the tests, such as tests/nri/fake.py."""
    assert [
        str(test)
        for test in files_of_tests()
        if test.parent.parts
        and (AGENT / test.parent).is_dir()
        and str(test) not in COVERED
        and not named_for(test, AGENT / test.parent)
        and not named_for(test, TESTS / test.parent)
    ] == []


def imported(file: Path) -> Iterator[str]:
    """Names with `test_`, without those of tests: tests/vm runs some of other suites in a guest."""
    text = file.read_text()
    if not NAMED.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [each.name for each in node.names]
            yield from (f"{node.module}.{name}" for name in names)
            if not all(name.startswith("test_") for name in names):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def test_no_test_file_is_imported() -> None:
    names = {".".join(("tests", *each.with_suffix("").parts)) for each in files_of_tests()}
    assert {
        f"{file.relative_to(TESTS)} imports {name}"
        for file in TESTS.rglob("*.py")
        for name in imported(file)
        if name in names
    } == set()
